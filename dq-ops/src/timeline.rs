//! Timelines: a job's past, and why it does not run now.

use dq_core::{
    DeadKind, Ending, JobState, JobView, LatenessCause, LatenessFacts, QueueName, Target, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::error::{OpsError, Result};
use crate::jobs::JobSummary;
use crate::json::millis;
use crate::ops::Session;
use crate::overview::free_now;
use crate::text;

/// How many running jobs are looked at for the reason why a job waits.
const MAX_RUNNING: usize = 1_000;

/// A job's past, and what it waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct Timeline {
    /// The time by the store's clock.
    #[serde(with = "text")]
    pub at: Timestamp,
    /// The job.
    pub job: JobSummary,
    /// The job's escalation step, from 0; 0 without an escalation.
    #[serde(default)]
    pub step: u32,
    /// Known events, in order. The store keeps only the last claim and the last error, and no times
    /// for lost leases and failed runs. So these may be out of place after a move.
    pub events: Vec<TimelineEvent>,
    /// What the job waits for; `None` if it has ended.
    pub now: Option<WaitReason>,
    /// The queue's runners.
    pub presence: Presence,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct TimelineEvent {
    /// The time; `None` if the store does not keep it.
    #[serde(with = "text::option")]
    pub at: Option<Timestamp>,
    /// The event.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// A kind of event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// The store accepted the job.
    Scheduled,
    /// The job became due.
    Due,
    /// A runner claimed the job.
    Claimed {
        /// The runner.
        worker: Option<String>,
        /// Lateness in milliseconds; `None` if the due time has changed since.
        late_ms: Option<u64>,
    },
    /// The last claims ended without a result: the runner crashed or lost the store.
    Lost {
        /// Consecutive lost claims.
        times: u32,
    },
    /// A run failed; the job retries at its due time.
    Failed {
        /// The error.
        error: String,
        /// The attempt number, from 1.
        attempt: u32,
    },
    /// The job died.
    Dead {
        /// The reason.
        reason: String,
        /// The fatal attempt's number; `None` if the job died for another reason.
        #[serde(default)]
        attempt: Option<u32>,
    },
    /// The job ended.
    Ended {
        /// How it ended.
        ending: String,
        /// The reason, if there is one.
        reason: Option<String>,
    },
}

/// The reason why a job waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitReason {
    /// The job is not due yet.
    NotDue {
        /// Time left, in milliseconds.
        in_ms: u64,
    },
    /// The queue is paused.
    Paused,
    /// No runner serves the queue.
    NoRunner,
    /// As many jobs of the queue run as may at once.
    MaxRunning,
    /// The queue's rate lets no job start yet.
    Rate,
    /// A handler has throttled the queue.
    Throttled,
    /// As many jobs of its group run as may at once.
    GroupFull {
        /// The group.
        group: String,
        /// Its running jobs.
        running: u32,
    },
    /// All its runners are busy.
    NoFreeSlot,
    /// The job is due and a runner has a free slot.
    Claimable,
    /// The job is due, but it is unknown whether a runner has a free slot.
    Unknown,
    /// The job runs.
    Running {
        /// The runner.
        worker: Option<String>,
    },
    /// The job is dead and waits for an operator.
    Dead,
}

/// A queue's runners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct Presence {
    /// Whether the queue is paused.
    pub paused: bool,
    /// Runners that serve the queue; `None` for the framework's queues, and if the store keeps no
    /// announcements.
    pub runners: Option<u64>,
    /// Jobs that they could start now.
    pub free_slots: Option<u64>,
    /// Jobs that they can run at once.
    pub slots: Option<u64>,
    /// Whether more runners may serve this queue, because an announcement left queues out or a
    /// newer version wrote it.
    pub incomplete: bool,
}

impl From<&LatenessFacts> for Presence {
    fn from(facts: &LatenessFacts) -> Self {
        Self {
            paused: facts.paused,
            runners: facts.runners,
            free_slots: facts.free_slots,
            slots: facts.runners.map(|_| facts.slots),
            incomplete: facts.incomplete,
        }
    }
}

impl Session {
    /// Returns a job's past, and why it does not run now.
    ///
    /// A key finds the same job as in [`job`](Self::job).
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` if the store cannot read single jobs; `Unavailable`.
    pub async fn timeline(&self, queue: &QueueName, target: &Target) -> Result<Timeline> {
        let view = match self.view(queue, target).await {
            Err(error @ OpsError::NotFound { .. }) => {
                // A misspelt queue has no jobs either.
                self.require_known(queue).await?;
                return Err(error);
            }
            view => view?,
        };
        let facts = self.facts(queue).await?;
        let at = self.now().await?;
        let mut job = self.summary(&view);
        self.name_worker(&mut job).await;
        let events = events(&view, &job, at);
        let now = match wait_reason(&job, &facts, at) {
            Some(
                reason @ (WaitReason::NoFreeSlot | WaitReason::Claimable | WaitReason::Unknown),
            ) => Some(self.full_group(&view).await?.unwrap_or(reason)),
            reason => reason,
        };
        Ok(Timeline { at, job, step: view.job.step(), events, now, presence: (&facts).into() })
    }

    /// Returns the reason of a ready job whose group is full. Counts at most a page of running
    /// jobs.
    async fn full_group(&self, view: &JobView) -> Result<Option<WaitReason>> {
        let queue = self.ops.dq().queue(&view.job.queue)?;
        let limit = queue.stats().await?.flow.in_force().group_max_running;
        let (Some(group), Some(limit)) = (view.job.group(), limit) else { return Ok(None) };
        let leased = queue.browse(JobState::Running).payloads(false).limit(MAX_RUNNING).await?;
        let of_group = leased.jobs.iter().filter(|it| it.job.group() == Some(group)).count();
        let running = u32::try_from(of_group).unwrap_or(u32::MAX);
        let full = || WaitReason::GroupFull { group: group.to_owned(), running };
        Ok((running >= limit).then(full))
    }

    async fn facts(&self, queue: &QueueName) -> Result<LatenessFacts> {
        let stats = self.ops.dq().queue(queue)?.stats().await?;
        let facts = match self.registered().await? {
            // Runners do not announce the framework's queues.
            Some(runners) if !queue.is_reserved() => LatenessFacts::announced(queue, &runners),
            _ => LatenessFacts::default(),
        };
        let free_slots = facts
            .free_slots
            .map(|announced| free_now(announced, facts.slots, stats.running, facts.incomplete));
        Ok(LatenessFacts { paused: stats.paused, limit: stats.limit(), free_slots, ..facts })
    }
}

/// Orders the known events by the rest of the job, because the store lacks some times.
fn events(view: &JobView, job: &JobSummary, now: Timestamp) -> Vec<TimelineEvent> {
    let event = |at, kind| Some(TimelineEvent { at, kind });
    let scheduled = event(Some(job.created), EventKind::Scheduled);
    // A job that ended before its due time never became due.
    let lived_until = job.ended.as_ref().map_or(now, |ended| ended.at);
    let became_due = job.due <= lived_until;
    let due = event(Some(job.due.max(job.created)), EventKind::Due).filter(|_| became_due);
    let last_error = job.last_error.clone().zip(job.last_error_attempt);
    let failed =
        last_error.and_then(|(error, attempt)| event(None, EventKind::Failed { error, attempt }));
    let dead = job.dead.as_ref().and_then(|dead| {
        let attempt = dead.kind.is_failed_attempt().then_some(job.attempts);
        event(Some(dead.at), EventKind::Dead { reason: dead.message.clone(), attempt })
    });
    let ended = job.ended.as_ref().and_then(|ended| {
        let (ending, reason) = (ended.ending.as_str().to_owned(), ended.reason.clone());
        event(Some(ended.at), EventKind::Ended { ending, reason })
    });

    // A claim before the due time was for an earlier one, which its run changed.
    let is_for_earlier_due = view.leased_since.is_some_and(|at| at < job.due);
    let claimed = view.leased_since.and_then(|at| {
        let late_ms = (!is_for_earlier_due).then(|| millis(at.since(job.due)));
        event(Some(at), EventKind::Claimed { worker: job.worker.clone(), late_ms })
    });
    let lost = event(None, EventKind::Lost { times: job.losses }).filter(|_| job.losses > 0);
    let events = if is_for_earlier_due {
        [scheduled, claimed, lost, failed, due, dead, ended]
    } else if last_claim_was_lost(view) {
        [scheduled, failed, due, claimed, lost, dead, ended]
    } else {
        [scheduled, failed, due, lost, claimed, dead, ended]
    };
    events.into_iter().flatten().collect()
}

fn last_claim_was_lost(view: &JobView) -> bool {
    let has_ended_run = match (view.death(), &view.ended) {
        (Some(kind), _) => kind != DeadKind::Lost,
        (None, Some(ended)) => matches!(ended.ending, Ending::Done | Ending::Skipped),
        (None, None) => false,
    };
    view.state != JobState::Running && !has_ended_run
}

fn wait_reason(job: &JobSummary, facts: &LatenessFacts, now: Timestamp) -> Option<WaitReason> {
    match job.state {
        JobState::Scheduled if job.due > now => {
            Some(WaitReason::NotDue { in_ms: millis(job.due.since(now)) })
        }
        JobState::Scheduled | JobState::Ready => Some(due_reason(facts)),
        JobState::Running => Some(WaitReason::Running { worker: job.worker.clone() }),
        JobState::Dead => Some(WaitReason::Dead),
        _ => None,
    }
}

/// Returns the reason why a due job waits, by the rule that explains a missed objective.
fn due_reason(facts: &LatenessFacts) -> WaitReason {
    match LatenessCause::of(facts) {
        Some(LatenessCause::Paused) => WaitReason::Paused,
        Some(LatenessCause::NoRunner) => WaitReason::NoRunner,
        Some(LatenessCause::MaxRunning) => WaitReason::MaxRunning,
        Some(LatenessCause::Rate) => WaitReason::Rate,
        Some(LatenessCause::Throttled) => WaitReason::Throttled,
        Some(LatenessCause::SlotsFull | LatenessCause::HandlersSlow) => WaitReason::NoFreeSlot,
        _ if facts.free_slots.is_some_and(|free| free > 0) => WaitReason::Claimable,
        _ => WaitReason::Unknown,
    }
}
