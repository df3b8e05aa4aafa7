//! A judge over what clients saw.
//!
//! Each call is a [`Span`]: it began, it ended, and took effect somewhere between. Two calls are in
//! order only if one had ended before the other began; the judge accuses a store only of what no
//! order of overlapping calls explains. A call whose answer was lost (`None`) may or may not have
//! taken effect.

mod judge;
mod life;

use std::fmt;

use dq_core::{
    Cancelled, JobId, JobKey, JobRef, Lease, LeasedJob, QueueName, Renewed, Rescheduled, Scheduled,
    Settled, Settlement, Timestamp, Verdict,
};

/// When a call began and ended, in the order of all beginnings and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Its beginning.
    pub began: u64,
    /// Its end.
    pub ended: u64,
    /// The store's clock at its beginning.
    pub at: Timestamp,
}

impl Span {
    /// Whether this call had ended before the other began.
    #[must_use]
    pub const fn before(&self, other: &Self) -> bool {
        self.ended < other.began
    }
}

/// One thing that a client saw.
#[derive(Debug, Clone)]
pub struct Event {
    /// When.
    pub span: Span,
    /// What.
    pub what: What,
}

/// What a client asked about one job, and the answer; `None` if it was lost.
#[derive(Debug, Clone)]
pub enum What {
    /// A job was handed in.
    Scheduled {
        /// Its id.
        job: JobId,
        /// Its queue.
        queue: QueueName,
        /// Its key.
        key: Option<JobKey>,
        /// It must not start before this.
        not_before: Timestamp,
        /// What became of it.
        answer: Option<Scheduled>,
    },
    /// A job was leased.
    Started {
        /// The job and its lease.
        leased: Box<LeasedJob>,
        /// The store's clock at the claim.
        now: Timestamp,
    },
    /// A claim's answer was lost; jobs may have been leased to nobody.
    ClaimFailed,
    /// A lease was to end.
    Finished {
        /// The lease and the verdict.
        settlement: Settlement,
        /// What became of it.
        answer: Option<Settled>,
    },
    /// A lease was to be kept.
    Renewed {
        /// The lease.
        lease: Lease,
        /// If it was kept, it lasts at least until then.
        until: Timestamp,
        /// What became of it.
        answer: Option<Renewed>,
    },
    /// A job was to be taken back.
    Cancelled {
        /// The job, by id or key.
        job: JobRef,
        /// What became of it.
        answer: Option<Cancelled>,
    },
    /// A job was to be moved.
    Moved {
        /// The job, by id or key.
        job: JobRef,
        /// If it was moved, it must not start before this.
        not_before: Timestamp,
        /// What became of it.
        answer: Option<Rescheduled>,
    },
    /// An operator intervened, with or without success.
    Operated {
        /// The queue.
        queue: QueueName,
        /// The intervention.
        what: Intervention,
    },
}

/// What an operator did to the jobs of a queue.
#[derive(Debug, Clone)]
pub enum Intervention {
    /// Made dead jobs live again.
    Replay {
        /// Which; all if `None`.
        jobs: Option<Vec<JobId>>,
        /// They must not start before this.
        not_before: Timestamp,
    },
    /// Removed dead jobs.
    Remove {
        /// Which; all if `None`.
        jobs: Option<Vec<JobId>>,
    },
    /// Removed all that did not run.
    Purge,
}

/// The clauses of the contract that a history can break, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Clause {
    /// 1: nothing is lost, and nothing is made up.
    NothingLost = 1,
    /// 2: never early.
    NeverEarly = 2,
    /// 4: at least once, one at a time.
    OneAtATime = 4,
    /// 6: key calls and cancels are atomic and say what happened.
    SaysWhatHappened = 6,
    /// 7: failures are counted in the store, and the dead stay dead.
    FailureCounted = 7,
}

/// One accusation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    /// The clause that was broken.
    pub clause: Clause,
    /// The job.
    pub job: JobId,
    /// How.
    pub how: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "clause {}: job {}: {}", self.clause as u8, self.job, self.how)
    }
}

/// What all clients of one store saw.
#[derive(Debug, Clone, Default)]
pub struct History {
    events: Vec<Event>,
}

impl History {
    /// A history of these events, in any order.
    #[must_use]
    pub fn new(mut events: Vec<Event>) -> Self {
        events.sort_by_key(|event| event.span.began);
        Self { events }
    }

    /// The events by their beginning.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// How many settlements as done were seen to be accepted: whether there is enough to judge.
    #[must_use]
    pub fn done(&self) -> usize {
        let is_done = |event: &&Event| match &event.what {
            What::Finished { settlement, answer } => {
                settlement.verdict == Verdict::Done && *answer == Some(Settled::Accepted)
            }
            _ => false,
        };
        self.events.iter().filter(is_done).count()
    }

    /// Every breach that can be proven, given which jobs are in the store at the end.
    #[must_use]
    pub fn judge(&self, remaining: &[JobId]) -> Vec<Breach> {
        judge::judge(&self.events, remaining)
    }
}
