//! Lists, defines and changes schedules.

use bytes::Bytes;
use dq_core::{ErrorKind, Overlap, QueueName, RecurringSchedule, ScheduleView, Timestamp};
use dq_cron::Times;
use serde::{Deserialize, Serialize};

use crate::actor::Role;
use crate::error::{OpsError, Result};
use crate::input::parse_duration;
use crate::json::millis;
use crate::openapi;
use crate::ops::Session;
use crate::payload::PayloadView;
use crate::redact::JobContent;
use crate::schedule::ScheduledJob;
use crate::text;

/// The most occurrences that a schedule is shown with.
const MAX_NEXT: usize = 100;

/// The only action on a schedule that cannot be decoded.
const REMOVE: &str = "remove_schedule";

/// A schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct ScheduleSummary {
    /// The schedule name.
    pub name: String,
    /// The jobs' queue.
    #[schema(value_type = openapi::QueueName)]
    pub queue: QueueName,
    /// The cron expression; `None` for an interval.
    pub cron: Option<String>,
    /// The cron expression's time zone.
    pub tz: Option<String>,
    /// The interval in milliseconds; `None` for a cron expression.
    pub every_ms: Option<u64>,
    /// Whether it is paused: its occurrences schedule no jobs.
    pub paused: bool,
    /// Whether its declaring processes have been gone for three hours.
    pub orphaned: bool,
    /// Whether it has stopped because no process has declared it for a day.
    pub stopped: bool,
    /// The next time a runner looks at it: the next occurrence, or earlier while an occurrence
    /// waits for an earlier job. A stopped schedule then looks for a new declaration.
    #[serde(with = "text")]
    pub next_due: Timestamp,
    /// What happens to missed occurrences: `last`, `none`, or a limit such as `all:10`.
    #[schema(value_type = openapi::CatchUp)]
    pub catch_up: String,
    /// What happens while an earlier occurrence's job is live: `skip`, `allow` or `queue_one`.
    #[schema(value_type = openapi::Overlap)]
    pub overlap: String,
    /// How late an occurrence may be scheduled, in milliseconds; `None` for no limit.
    pub deadline_ms: Option<u64>,
    /// Every occurrence is delayed by up to this long, in milliseconds. The schedule name fixes the
    /// actual delay.
    pub jitter_ms: Option<u64>,
    /// How often a declaration changed the schedule; `None` if a call created it.
    pub generation: Option<u64>,
}

/// A schedule with payload and next occurrences.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct ScheduleDetail {
    /// The time by the store's clock.
    #[serde(with = "text")]
    pub at: Timestamp,
    /// The schedule.
    #[serde(flatten)]
    pub schedule: ScheduleSummary,
    /// The next occurrences, including missed and paused ones.
    pub next: Vec<Occurrence>,
    /// The payload's schema version.
    pub schema_version: Option<u32>,
    /// The payload of each job; `None` for a viewer.
    pub payload: Option<PayloadView>,
}

/// One occurrence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct Occurrence {
    /// The due time.
    #[serde(with = "text")]
    pub due: Timestamp,
    /// The same time in the schedule's time zone, such as `2026-03-29T03:00:00+02:00`; `None` for
    /// an interval.
    pub local: Option<String>,
}

/// A backfill's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct BackfillReport {
    /// Jobs stored.
    pub changed: u64,
    /// Occurrences with a job that is in the store, or ended and still remembered.
    pub existing: u64,
}

/// A schedule definition.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ScheduleDefinition {
    /// The jobs' queue.
    #[schema(value_type = openapi::QueueName, required = true)]
    pub queue: String,
    /// A cron expression, such as `30 2 * * *`; give either this or `every`.
    #[schema(value_type = Option<openapi::CronExpression>)]
    pub cron: Option<String>,
    /// The cron expression's time zone, such as `Europe/Stockholm`; `UTC` by default.
    #[schema(value_type = Option<openapi::TimeZone>)]
    pub tz: Option<String>,
    /// An interval, such as `90s`.
    #[schema(value_type = Option<openapi::PositiveDuration>)]
    pub every: Option<String>,
    /// The payload of each job; `null` by default.
    pub payload: serde_json::Value,
    /// The payload's schema version.
    #[schema(minimum = 1)]
    #[serde(deserialize_with = "crate::json::whole")]
    pub schema_version: Option<u32>,
    /// What happens to missed occurrences: `last` (the default), `none`, or a limit such as
    /// `all:10`.
    #[schema(value_type = Option<openapi::CatchUp>)]
    pub catch_up: Option<String>,
    /// What happens while an earlier occurrence's job is live: `skip`, `allow` or `queue_one`.
    #[schema(value_type = Option<openapi::Overlap>)]
    pub overlap: Option<String>,
    /// How late an occurrence may be scheduled, such as `1h`; no limit by default.
    #[schema(value_type = Option<openapi::PositiveDuration>)]
    pub deadline: Option<String>,
    /// Every occurrence is delayed by up to this long, such as `10s`. The schedule name fixes the
    /// actual delay.
    #[schema(value_type = Option<openapi::PositiveDuration>)]
    pub jitter: Option<String>,
}

impl From<&ScheduleView> for ScheduleSummary {
    fn from(view: &ScheduleView) -> Self {
        let spec = &view.spec;
        let (cron, tz, every_ms) = match &spec.times {
            Times::Cron(cron) => {
                (Some(cron.expression().to_owned()), Some(cron.zone().to_owned()), None)
            }
            Times::Interval(interval) => (None, None, Some(millis(interval.length()))),
            // A kind of times from a later version.
            other => (Some(other.to_string()), None, None),
        };
        let overlap = match spec.overlap {
            Overlap::Allow => "allow",
            Overlap::QueueOne => "queue_one",
            _ => "skip",
        };
        Self {
            name: view.name.clone(),
            queue: spec.queue.clone(),
            cron,
            tz,
            every_ms,
            paused: view.paused,
            orphaned: view.orphaned,
            stopped: view.stopped,
            next_due: view.next_due,
            catch_up: spec.catch_up.to_string(),
            overlap: overlap.to_owned(),
            deadline_ms: spec.deadline.map(millis),
            jitter_ms: spec.jitter.map(millis),
            generation: view.generation,
        }
    }
}

/// Changes need the role operator. The audit records the schedule name as their target.
impl Session {
    /// Lists all readable schedules, next due first.
    ///
    /// [`check`](Self::check) reports unreadable ones.
    pub async fn schedules(&self) -> Result<Vec<ScheduleSummary>> {
        let views = self.ops.dq().schedules().await?;
        Ok(views.iter().map(ScheduleSummary::from).collect())
    }

    /// Returns a schedule with up to `next` occurrences, clamped to 100.
    ///
    /// # Errors
    /// [`OpsError::NoSchedule`]; `Codec` or `Incompatible` if it cannot be read; `InvalidInput` for
    /// an invalid name; otherwise as [`schedules`](Self::schedules).
    pub async fn recurring(&self, name: &str, next: usize) -> Result<ScheduleDetail> {
        let view = self.schedule_view(name).await?;
        let local = |due: Timestamp| match &view.spec.times {
            Times::Cron(cron) => cron.local_time(due.as_millis()),
            _ => None,
        };
        let next = self.handle(name).next(next.min(MAX_NEXT)).await?;
        let next = next.into_iter().map(|due| Occurrence { local: local(due), due }).collect();
        let payload = self.may(Role::Reader).then(|| {
            let payload = Bytes::from(view.spec.payload.to_string());
            let content = JobContent::of_schedule(view.spec.queue.clone(), payload);
            PayloadView::new("application/json", &self.redaction().redacted(content).payload)
        });
        Ok(ScheduleDetail {
            at: self.now().await?,
            schedule: ScheduleSummary::from(&view),
            next,
            schema_version: view.spec.schema_version,
            payload,
        })
    }

    /// Creates or changes a schedule, including one that a program declares.
    ///
    /// Returns `false` if the store already has exactly this definition.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid definition or one without future occurrences; `Forbidden`;
    /// otherwise as [`schedules`](Self::schedules).
    pub async fn put_schedule(&self, name: &str, definition: &ScheduleDefinition) -> Result<bool> {
        // An invalid queue name may have any length, so the audit leaves it out.
        let queue = QueueName::new(&definition.queue);
        let queue = queue.as_ref().map(QueueName::as_str).unwrap_or_default();
        let target = Some(format!("schedule:{name}"));
        let put = async {
            self.require(Role::Operator)?;
            Ok(self.defined(name, definition)?.upsert().await?)
        };
        self.audited("put_schedule", queue, target, |changed| u64::from(*changed), put).await
    }

    fn defined(
        &self,
        name: &str,
        definition: &ScheduleDefinition,
    ) -> dq_core::Result<RecurringSchedule<serde_json::Value>> {
        let mut schedule = self.ops.dq().recurring_in(&definition.queue, name);
        schedule = schedule.payload(definition.payload.clone());
        match (&definition.cron, &definition.tz, &definition.every) {
            (Some(cron), tz, None) => {
                schedule = schedule.cron(cron, tz.as_deref().unwrap_or("UTC"));
            }
            (None, None, Some(every)) => schedule = schedule.every(parse_duration(every)?),
            _ => {
                return Err(dq_core::Error::invalid("the times of the schedule are not clear")
                    .remedy("give either cron, and tz if it is not UTC, or every"));
            }
        }
        if let Some(version) = definition.schema_version {
            schedule = schedule.schema_version(version);
        }
        if let Some(catch_up) = &definition.catch_up {
            schedule = schedule.catch_up(catch_up.parse()?);
        }
        if let Some(overlap) = &definition.overlap {
            schedule = schedule.overlap(overlap.parse()?);
        }
        if let Some(deadline) = &definition.deadline {
            schedule = schedule.deadline(parse_duration(deadline)?);
        }
        if let Some(jitter) = &definition.jitter {
            schedule = schedule.jitter(parse_duration(jitter)?);
        }
        Ok(schedule)
    }

    /// Pauses a schedule, so that its occurrences schedule no jobs, even later.
    ///
    /// Returns `false` if it was already paused.
    ///
    /// # Errors
    /// [`OpsError::NoSchedule`], `Forbidden`, and store errors.
    pub async fn pause_schedule(&self, name: &str) -> Result<bool> {
        let pause = async { Ok(self.handle(name).pause().await?) };
        self.change("pause_schedule", name, |changed| u64::from(*changed), pause).await
    }

    /// Resumes a paused schedule at its next occurrence; returns `false` if it is not paused.
    pub async fn resume_schedule(&self, name: &str) -> Result<bool> {
        let resume = async { Ok(self.handle(name).resume().await?) };
        self.change("resume_schedule", name, |changed| u64::from(*changed), resume).await
    }

    /// Skips a schedule's next occurrence.
    ///
    /// # Errors
    /// `Conflict` if it has none; otherwise as [`pause_schedule`](Self::pause_schedule).
    pub async fn skip_next(&self, name: &str) -> Result<()> {
        let skip = async {
            if self.handle(name).skip_next().await? {
                return Ok(());
            }
            self.schedule_view(name).await?;
            Err(OpsError::conflict(
                format!("the schedule {name} has no occurrence left"),
                "change its times, or remove it",
            ))
        };
        self.change("skip_next", name, |()| 1, skip).await
    }

    /// Schedules an extra job now; unless jobs may overlap, only if none is live.
    pub async fn run_schedule(&self, name: &str) -> Result<ScheduledJob> {
        let run = async {
            let scheduled = self.handle(name).run_now().await?;
            scheduled.map(ScheduledJob::from).ok_or_else(|| no_schedule(name))
        };
        self.change("run_schedule", name, |job| u64::from(job.is_stored()), run).await
    }

    /// Schedules up to 1,000 occurrences after `after`, up to and including `until`.
    ///
    /// Their jobs are due now, whatever the overlap policy. Future occurrences are left to the
    /// schedule.
    ///
    /// # Errors
    /// `Conflict` if there are more occurrences, or `until` is not after `after`; otherwise as
    /// [`pause_schedule`](Self::pause_schedule).
    pub async fn backfill(
        &self,
        name: &str,
        after: Timestamp,
        until: Timestamp,
    ) -> Result<BackfillReport> {
        let backfill = async {
            if until <= after {
                return Err(OpsError::conflict(
                    "the end of the backfill is not after its start",
                    "give the earlier time as `after`, and the later one as `until`",
                ));
            }
            let done = self.handle(name).backfill(after, until).await.map_err(OpsError::unfit)?;
            Ok(BackfillReport { changed: done.scheduled, existing: done.existing })
        };
        self.change("backfill", name, |report| report.changed, backfill).await
    }

    /// Removes a schedule, but no jobs of earlier occurrences.
    ///
    /// If a program declares the schedule, it comes back when that program restarts.
    ///
    /// # Errors
    /// `Incompatible` if a later version has written it; otherwise as
    /// [`pause_schedule`](Self::pause_schedule).
    pub async fn remove_schedule(&self, name: &str) -> Result<()> {
        let remove = async {
            match self.handle(name).remove().await? {
                true => Ok(()),
                false => Err(no_schedule(name)),
            }
        };
        self.change(REMOVE, name, |()| 1, remove).await
    }

    /// Returns a handle without a queue, which only storing a schedule needs.
    fn handle(&self, name: &str) -> RecurringSchedule<serde_json::Value> {
        self.ops.dq().recurring_in("", name)
    }

    async fn schedule_view(&self, name: &str) -> Result<ScheduleView> {
        // Otherwise the error would name a job key.
        dq_core::ScheduleSpec::check_name(name)?;
        self.handle(name).get().await?.ok_or_else(|| no_schedule(name))
    }

    /// Changes a schedule. It is read first, because the audit entry has its queue.
    async fn change<T>(
        &self,
        action: &str,
        name: &str,
        changed: impl Fn(&T) -> u64,
        change: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let found = self.schedule_view(name).await;
        let queue = found.as_ref().map(|view| view.spec.queue.to_string()).unwrap_or_default();
        let checked = async {
            self.require(Role::Operator)?;
            match found {
                Ok(_) => change.await,
                // A later version's schedule has another error, and is left to that version.
                Err(error) if error.store_kind() == Some(ErrorKind::Codec) && action == REMOVE => {
                    change.await
                }
                Err(error) => Err(error),
            }
        };
        self.audited(action, queue, Some(format!("schedule:{name}")), changed, checked).await
    }
}

fn no_schedule(name: &str) -> OpsError {
    OpsError::NoSchedule { name: name.to_owned() }
}
