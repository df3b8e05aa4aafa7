//! A job's past, and why it does not run now.

use dq_core::{
    DeadKind, Ending, JobState, JobView, LatenessCause, LatenessFacts, QueueName, Target, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::format::millis;
use crate::jobs::JobSummary;
use crate::ops::Session;
use crate::text;

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

impl From<&Presence> for LatenessFacts {
    fn from(presence: &Presence) -> Self {
        Self {
            paused: presence.paused,
            runners: presence.runners,
            incomplete: presence.incomplete,
            free_slots: presence.free_slots,
            slots: presence.slots.unwrap_or_default(),
            ..Self::default()
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
        let view = self.view(queue, target).await?;
        let presence = self.presence(queue).await?;
        let at = self.now().await?;
        let job = self.summary(&view);
        let events = events(&view, &job, at);
        let now = wait_reason(&job, &presence, at);
        Ok(Timeline { at, job, step: view.job.step(), events, now, presence })
    }

    async fn presence(&self, queue: &QueueName) -> Result<Presence> {
        let stats = self.ops.dq().queue(queue)?.stats().await?;
        let mut presence = Presence { paused: stats.paused, ..Presence::default() };
        // Runners do not announce the framework's queues.
        let Some(runners) = self.registered().await?.filter(|_| !queue.is_reserved()) else {
            return Ok(presence);
        };
        let facts = LatenessFacts::announced(queue, &runners);
        (presence.runners, presence.free_slots) = (facts.runners, facts.free_slots);
        (presence.slots, presence.incomplete) = (Some(facts.slots), facts.incomplete);
        Ok(presence)
    }
}

fn events(view: &JobView, job: &JobSummary, now: Timestamp) -> Vec<TimelineEvent> {
    let event = |at, kind| TimelineEvent { at, kind };
    // A claim before the due time was for an earlier one, which its run changed.
    let is_earlier = view.leased_since.is_some_and(|at| at < job.due);
    let claimed = view.leased_since.map(|at| {
        let late_ms = (!is_earlier).then(|| millis(at.since(job.due)));
        event(Some(at), EventKind::Claimed { worker: job.worker.clone(), late_ms })
    });
    let lost = (job.losses > 0).then(|| event(None, EventKind::Lost { times: job.losses }));
    let claims = match is_earlier || last_claim_was_lost(view) {
        true => [claimed, lost],
        false => [lost, claimed],
    };
    let (earlier_claims, claims) = match is_earlier {
        true => (Some(claims), None),
        false => (None, Some(claims)),
    };

    let mut events = vec![event(Some(job.created), EventKind::Scheduled)];
    events.extend(earlier_claims.into_iter().flatten().flatten());
    if let (Some(error), Some(attempt)) = (&job.last_error, job.last_error_attempt) {
        let kind = EventKind::Failed { error: error.clone(), attempt };
        events.push(event(None, kind));
    }
    // A job that ended before its due time never became due.
    let until = job.ended.as_ref().map_or(now, |ended| ended.at);
    if job.due <= until {
        events.push(event(Some(job.due.max(job.created)), EventKind::Due));
    }
    events.extend(claims.into_iter().flatten().flatten());
    if let Some(dead) = &job.dead {
        let attempt = dead.kind.is_failed_attempt().then_some(job.attempts);
        let kind = EventKind::Dead { reason: dead.message.clone(), attempt };
        events.push(event(Some(dead.at), kind));
    }
    if let Some(ended) = &job.ended {
        let kind = EventKind::Ended {
            ending: ended.ending.as_str().to_owned(),
            reason: ended.reason.clone(),
        };
        events.push(event(Some(ended.at), kind));
    }
    events
}

/// For a job with losses.
fn last_claim_was_lost(view: &JobView) -> bool {
    let is_lost = match view.death() {
        Some(kind) => kind == DeadKind::Lost,
        None => view
            .ended
            .as_ref()
            .is_none_or(|ended| !matches!(ended.ending, Ending::Done | Ending::Skipped)),
    };
    view.state != JobState::Running && is_lost
}

fn wait_reason(job: &JobSummary, presence: &Presence, now: Timestamp) -> Option<WaitReason> {
    // The same rule names the cause for a missed lateness objective.
    let due = |presence: &Presence| match LatenessCause::of(&LatenessFacts::from(presence)) {
        Some(LatenessCause::Paused) => WaitReason::Paused,
        Some(LatenessCause::NoRunner) => WaitReason::NoRunner,
        Some(LatenessCause::SlotsFull | LatenessCause::HandlersSlow) => WaitReason::NoFreeSlot,
        _ if presence.free_slots.is_some_and(|free| free > 0) => WaitReason::Claimable,
        _ => WaitReason::Unknown,
    };
    match job.state {
        JobState::Scheduled if job.due > now => {
            Some(WaitReason::NotDue { in_ms: millis(job.due.since(now)) })
        }
        JobState::Scheduled | JobState::Ready => Some(due(presence)),
        JobState::Running => Some(WaitReason::Running { worker: job.worker.clone() }),
        JobState::Dead => Some(WaitReason::Dead),
        _ => None,
    }
}
