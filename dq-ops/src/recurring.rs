//! Schedules: when jobs recur, and what operators do with them.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{ErrorKind, Overlap, QueueName, Recurring, RecurringView, Timestamp};
use dq_cron::Recurrence;
use serde::{Deserialize, Serialize};

use crate::actor::Role;
use crate::audit::Pending;
use crate::error::{OpsError, Result};
use crate::input::parse_duration;
use crate::jobs::PayloadView;
use crate::ops::Session;
use crate::redact::JobContent;
use crate::schedule::ScheduledJob;
use crate::text;

/// Maximum number of occurrences of a [`RecurringDetail`].
const MAX_NEXT: usize = 100;

/// A schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct RecurringSummary {
    /// The name.
    pub name: String,
    /// The queue of its jobs.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::QueueName))]
    pub queue: QueueName,
    /// The times as a cron expression; `None` if they are an interval.
    pub cron: Option<String>,
    /// The time zone of the cron expression.
    pub tz: Option<String>,
    /// The times as an interval in milliseconds; `None` if they are a cron expression.
    pub every_ms: Option<u64>,
    /// Whether its occurrences schedule no jobs.
    pub paused: bool,
    /// Whether no process has declared it for three hours, although one did before.
    pub orphaned: bool,
    /// Whether it has stopped, because no process has declared it for a day.
    pub stopped: bool,
    /// When the schedule is looked at next: at its next occurrence, or earlier while an occurrence
    /// waits for the job of an earlier one; if it has stopped, when it looks for a declaration
    /// again.
    #[serde(with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub next_due: Timestamp,
    /// What happens to missed occurrences: `last`, `none`, or such as `all:10`.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::CatchUp))]
    pub catch_up: String,
    /// What happens while the job of an earlier occurrence is live: `skip`, `allow` or `queue_one`.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::Overlap))]
    pub overlap: String,
    /// How late an occurrence may be scheduled, in milliseconds; `None` if at any time.
    pub deadline_ms: Option<u64>,
    /// All occurrences are later by the same part of this time, which depends on the name; in
    /// milliseconds.
    pub jitter_ms: Option<u64>,
    /// How many declarations have differed from the one before; `None` if it was made by a call.
    pub generation: Option<u64>,
}

/// A schedule with its payload and its next occurrences.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct RecurringDetail {
    /// The time, by the store's clock.
    #[serde(with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub at: Timestamp,
    /// The schedule.
    #[serde(flatten)]
    pub schedule: RecurringSummary,
    /// The next occurrences, those that were missed and those of a pause included.
    pub next: Vec<Occurrence>,
    /// The version of the payload's schema.
    pub schema_version: Option<u32>,
    /// The payload of each job; `None` for viewers.
    pub payload: Option<PayloadView>,
}

/// An occurrence of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Occurrence {
    /// When it is due.
    #[serde(with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub due: Timestamp,
    /// The same time on the clock of the schedule's zone, such as `2026-03-29T03:00:00+02:00`; `None`
    /// for an interval.
    pub local: Option<String>,
}

/// The result of a backfill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct BackfillReport {
    /// Number of jobs that it has stored.
    pub changed: u64,
    /// Number of occurrences whose job was there before: it is in the store, or has ended and is
    /// remembered still.
    pub existing: u64,
}

/// What a schedule is to be.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RecurringDefinition {
    /// The queue of the jobs.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::QueueName, required = true))]
    pub queue: String,
    /// The times as a cron expression, such as `30 2 * * *`; either this or `every`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::CronExpression>))]
    pub cron: Option<String>,
    /// The time zone of the cron expression, such as `Europe/Stockholm`; `UTC` by default.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::TimeZone>))]
    pub tz: Option<String>,
    /// The times as an interval, such as `90s`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::PositiveDuration>))]
    pub every: Option<String>,
    /// The payload of each job; `null` by default.
    pub payload: serde_json::Value,
    /// The version of the payload's schema.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    #[serde(deserialize_with = "crate::json::whole")]
    pub schema_version: Option<u32>,
    /// What happens to missed occurrences: `last` (the default), `none`, or such as `all:10`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::CatchUp>))]
    pub catch_up: Option<String>,
    /// What happens while the job of an earlier occurrence is live: `skip`, `allow` or `queue_one`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::Overlap>))]
    pub overlap: Option<String>,
    /// How late an occurrence may be scheduled, such as `1h`; at any time by default.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::PositiveDuration>))]
    pub deadline: Option<String>,
    /// All occurrences are later by the same part of this time, which depends on the name; such as
    /// `10s`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::PositiveDuration>))]
    pub jitter: Option<String>,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl From<&RecurringView> for RecurringSummary {
    fn from(view: &RecurringView) -> Self {
        let spec = &view.spec;
        let (cron, tz, every_ms) = match &spec.recurrence {
            Recurrence::Cron(cron) => {
                (Some(cron.expression().to_owned()), Some(cron.zone().to_owned()), None)
            }
            Recurrence::Interval(interval) => (None, None, Some(millis(interval.length()))),
            // A kind of a later version has its text.
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

/// Changes need the role operator, and are in the audit with the name of the schedule as their target.
impl Session {
    /// All schedules, the next due first. Those that cannot be read are findings of
    /// [`check`](Self::check).
    ///
    /// # Errors
    /// `Unsupported` if the store cannot keep schedules, `Unavailable` if the store cannot be reached.
    pub async fn schedules(&self) -> Result<Vec<RecurringSummary>> {
        let views = self.ops.dq().recurring_schedules().await?;
        Ok(views.iter().map(RecurringSummary::from).collect())
    }

    /// A schedule with its next occurrences, `next` of them, clamped to 100.
    ///
    /// # Errors
    /// [`OpsError::NoSchedule`] if there is none with this name; `Codec` or `Incompatible` if it cannot
    /// be read; `InvalidInput` if no schedule can have the name; otherwise as
    /// [`schedules`](Self::schedules).
    pub async fn recurring(&self, name: &str, next: usize) -> Result<RecurringDetail> {
        let view = self.recurring_view(name).await?;
        let local = |due: Timestamp| match &view.spec.recurrence {
            Recurrence::Cron(cron) => cron.local_time(due.as_millis()),
            _ => None,
        };
        let next = self.handle(name).next(next.min(MAX_NEXT)).await?;
        let next = next.into_iter().map(|due| Occurrence { local: local(due), due }).collect();
        let payload = self.may(Role::Reader).then(|| {
            let payload = Bytes::from(view.spec.payload.to_string());
            let content = JobContent::of_schedule(view.spec.queue.clone(), payload);
            PayloadView::new("application/json", &self.redaction().redacted(content).payload)
        });
        Ok(RecurringDetail {
            at: self.now().await?,
            schedule: RecurringSummary::from(&view),
            next,
            schema_version: view.spec.schema_version,
            payload,
        })
    }

    /// Stores a schedule, or changes it to this definition. Returns `false` if the store has exactly
    /// this one already. One that a program declares becomes that of this call.
    ///
    /// # Errors
    /// `InvalidInput` if a part of the definition is invalid, or if there is no time in the future;
    /// `Forbidden`; otherwise as [`schedules`](Self::schedules).
    pub async fn put_schedule(&self, name: &str, definition: &RecurringDefinition) -> Result<bool> {
        // What is no name of a queue may be of any length.
        let queue = QueueName::new(&definition.queue).ok();
        let queue = queue.as_ref().map(QueueName::as_str).unwrap_or_default();
        let audit = self.audit_of("put_schedule", queue, name);
        let result = async {
            self.require(Role::Operator)?;
            Ok(self.defined(name, definition)?.upsert().await?)
        };
        audit.end(result.await, |changed| u64::from(*changed))
    }

    fn defined(
        &self,
        name: &str,
        definition: &RecurringDefinition,
    ) -> dq_core::Result<Recurring<serde_json::Value>> {
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

    /// Pauses a schedule: its occurrences schedule no jobs from now on, nor later. Returns `false` if
    /// it is paused already.
    ///
    /// # Errors
    /// [`OpsError::NoSchedule`], `Forbidden`, and errors of the store.
    pub async fn pause_schedule(&self, name: &str) -> Result<bool> {
        let (found, audit) = self.begin_change("pause_schedule", name).await;
        let result = async {
            self.changeable(found)?;
            Ok(self.handle(name).pause().await?)
        };
        audit.end(result.await, |changed| u64::from(*changed))
    }

    /// Resumes a paused schedule with its next occurrence. Returns `false` if it is not paused.
    ///
    /// # Errors
    /// As [`pause_schedule`](Self::pause_schedule).
    pub async fn resume_schedule(&self, name: &str) -> Result<bool> {
        let (found, audit) = self.begin_change("resume_schedule", name).await;
        let result = async {
            self.changeable(found)?;
            Ok(self.handle(name).resume().await?)
        };
        audit.end(result.await, |changed| u64::from(*changed))
    }

    /// Leaves the next occurrence of a schedule out.
    ///
    /// # Errors
    /// As [`pause_schedule`](Self::pause_schedule).
    pub async fn skip_next(&self, name: &str) -> Result<()> {
        let (found, audit) = self.begin_change("skip_next", name).await;
        let result = async {
            self.changeable(found)?;
            match self.handle(name).skip_next().await? {
                true => Ok(()),
                false => Err(self.without_next(name).await),
            }
        };
        audit.end(result.await, |()| 1)
    }

    /// Why a schedule has no occurrence to leave out.
    async fn without_next(&self, name: &str) -> OpsError {
        let conflict = || {
            OpsError::conflict(
                format!("the schedule {name} has no occurrence left"),
                "change its times, or remove it",
            )
        };
        self.recurring_view(name).await.map_or_else(|error| error, |_| conflict())
    }

    /// Schedules a job of a schedule now, beside the occurrences; unless they may overlap, only if no
    /// job of it is live.
    ///
    /// # Errors
    /// As [`pause_schedule`](Self::pause_schedule).
    pub async fn run_schedule(&self, name: &str) -> Result<ScheduledJob> {
        let (found, audit) = self.begin_change("run_schedule", name).await;
        let result = async {
            self.changeable(found)?;
            let scheduled = self.handle(name).run_now().await?;
            scheduled.map(ScheduledJob::from).ok_or_else(|| no_schedule(name))
        };
        audit.end(result.await, |job| u64::from(job.is_stored()))
    }

    /// Schedules the occurrences after `after`, up to and including `until`, at most 1,000, all due
    /// now and whatever the overlap says. Those that are not due yet are left to the schedule.
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
        let (found, audit) = self.begin_change("backfill", name).await;
        let result = async {
            self.changeable(found)?;
            if until <= after {
                return Err(OpsError::conflict(
                    "the end of the backfill is not after its start",
                    "give the earlier time as `after`, and the later one as `until`",
                ));
            }
            let done = self.handle(name).backfill(after, until).await.map_err(OpsError::unfit)?;
            Ok(BackfillReport { changed: done.scheduled, existing: done.existing })
        };
        audit.end(result.await, |report| report.changed)
    }

    /// Removes a schedule. Jobs of earlier occurrences still run. One that a program declares is back
    /// when that program starts again.
    ///
    /// # Errors
    /// `Incompatible` if a later version has written it; otherwise as
    /// [`pause_schedule`](Self::pause_schedule).
    pub async fn remove_schedule(&self, name: &str) -> Result<()> {
        let (found, audit) = self.begin_change("remove_schedule", name).await;
        let result = async {
            self.require(Role::Operator)?;
            match found {
                // A damaged one can be removed. What a later version has written is left to that
                // version.
                Err(error) if error.store_kind() != Some(ErrorKind::Codec) => return Err(error),
                _ => {}
            }
            match self.handle(name).remove().await? {
                true => Ok(()),
                false => Err(no_schedule(name)),
            }
        };
        audit.end(result.await, |()| 1)
    }

    /// The calls of a schedule that exists; none of them reads the queue.
    fn handle(&self, name: &str) -> Recurring<serde_json::Value> {
        self.ops.dq().recurring_in("", name)
    }

    async fn recurring_view(&self, name: &str) -> Result<RecurringView> {
        // So that the error speaks of the name of a schedule, not of the key of a job.
        dq_core::ScheduleSpec::check_name(name)?;
        self.handle(name).get().await?.ok_or_else(|| no_schedule(name))
    }

    /// Begins an entry of the audit with the queue of the schedule, which is read for it.
    async fn begin_change(&self, action: &str, name: &str) -> (Result<RecurringView>, Pending) {
        let found = self.recurring_view(name).await;
        let queue = found.as_ref().map(|view| view.spec.queue.as_str()).unwrap_or_default();
        let audit = self.audit_of(action, queue, name);
        (found, audit)
    }

    fn audit_of(&self, action: &str, queue: &str, name: &str) -> Pending {
        self.begin(action, queue, Some(format!("schedule:{name}")))
    }

    /// Checks that the actor may change a schedule, and that it is there.
    fn changeable(&self, found: Result<RecurringView>) -> Result<()> {
        self.require(Role::Operator)?;
        found.map(drop)
    }
}

fn no_schedule(name: &str) -> OpsError {
    OpsError::NoSchedule { name: name.to_owned() }
}
