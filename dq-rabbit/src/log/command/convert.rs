//! What the words of the seam are in the log, and back.

use std::time::Duration;

use bytes::Bytes;
use dq_core::machine::OwnedOperation;
use dq_core::{
    DeadReason, Due, Error, ErrorKind, FencingToken, Headers, JobId, JobRef, Lease, NewJob,
    OnConflict, QueueName, Renewal, Reschedule, Result, Settlement, Target, Totals, Verdict, Want,
};

use super::{
    Claiming, Counts, Ending, Held, Moving, Name, Naming, Operating, Policy, Renewing, Scheduling,
    Settling, When,
};

impl From<NewJob> for Scheduling {
    fn from(job: NewJob) -> Self {
        Self {
            id: job.id,
            queue: job.queue,
            key: job.key,
            on_conflict: match job.on_conflict {
                OnConflict::Keep => Policy::Keep,
                OnConflict::Replace => Policy::Replace,
                OnConflict::Earliest => Policy::Earliest,
                OnConflict::Latest => Policy::Latest,
            },
            due: job.due.into(),
            max_attempts: job.max_attempts,
            payload: job.payload,
            headers: job.headers,
        }
    }
}

impl Scheduling {
    /// Of a job that is in the store already.
    pub(crate) fn of(job: &dq_core::Job) -> Self {
        Self {
            id: job.id,
            queue: job.queue.clone(),
            key: job.key.clone(),
            on_conflict: Policy::Keep,
            due: When::At(job.due),
            max_attempts: job.max_attempts,
            payload: job.payload.clone(),
            headers: job.headers.clone(),
        }
    }

    /// The job with this in place of its payload, and without its headers.
    pub(crate) fn job(&self, payload: Bytes) -> NewJob {
        NewJob {
            id: self.id,
            queue: self.queue.clone(),
            key: self.key.clone(),
            on_conflict: match self.on_conflict {
                Policy::Keep => OnConflict::Keep,
                Policy::Replace => OnConflict::Replace,
                Policy::Earliest => OnConflict::Earliest,
                Policy::Latest => OnConflict::Latest,
            },
            due: self.due.into(),
            payload,
            headers: Headers::new(),
            max_attempts: self.max_attempts,
        }
    }

    /// Lets go of what is read again when it is needed.
    pub(crate) fn strip(&mut self) {
        self.payload = Bytes::new();
        self.headers = Headers::new();
    }

    /// Bytes that it takes in the log, roughly.
    pub(crate) fn weight(&self) -> usize {
        96 + self.payload.len() + self.headers.bytes()
    }
}

impl From<Due> for When {
    fn from(due: Due) -> Self {
        match due {
            Due::At(at) => Self::At(at),
            Due::After(delay) => Self::After(millis(delay)),
        }
    }
}

impl From<When> for Due {
    fn from(when: When) -> Self {
        match when {
            When::At(at) => Self::At(at),
            When::After(delay) => Self::After(Duration::from_millis(delay)),
        }
    }
}

impl From<&JobRef> for Naming {
    fn from(job: &JobRef) -> Self {
        let name = match &job.target {
            Target::Id(id) => Name::Id(*id),
            Target::Key(key) => Name::Key(key.clone()),
        };
        Self(job.queue.clone(), name)
    }
}

impl From<&Naming> for JobRef {
    fn from(naming: &Naming) -> Self {
        match &naming.1 {
            Name::Id(id) => Self::new(naming.0.clone(), *id),
            Name::Key(key) => Self::new(naming.0.clone(), key.clone()),
        }
    }
}

impl From<&Reschedule> for Moving {
    fn from(wish: &Reschedule) -> Self {
        Self((&wish.job).into(), wish.due.into())
    }
}

impl From<&Moving> for Reschedule {
    fn from(moving: &Moving) -> Self {
        Self { job: (&moving.0).into(), due: moving.1.into() }
    }
}

impl Claiming {
    pub(crate) fn new(wants: &[Want], limit: usize, at_hand: Vec<JobId>) -> Self {
        let want = |want: &Want| (want.queue.clone(), want.max as u64, millis(want.lease_for));
        Self { wants: wants.iter().map(want).collect(), limit: limit as u64, at_hand }
    }

    pub(crate) fn wants(&self) -> Vec<Want> {
        let want = |(queue, max, lease): &(QueueName, u64, u64)| Want {
            queue: queue.clone(),
            max: usize::try_from(*max).unwrap_or(usize::MAX),
            lease_for: Duration::from_millis(*lease),
        };
        self.wants.iter().map(want).collect()
    }
}

impl From<&Lease> for Held {
    fn from(lease: &Lease) -> Self {
        Self(lease.queue.clone(), lease.job, lease.token.0)
    }
}

impl From<&Held> for Lease {
    fn from(held: &Held) -> Self {
        Self { queue: held.0.clone(), job: held.1, token: FencingToken(held.2) }
    }
}

impl From<&Renewal> for Renewing {
    fn from(renewal: &Renewal) -> Self {
        Self((&renewal.lease).into(), millis(renewal.lease_for))
    }
}

impl From<&Renewing> for Renewal {
    fn from(renewing: &Renewing) -> Self {
        Self { lease: (&renewing.0).into(), lease_for: Duration::from_millis(renewing.1) }
    }
}

impl TryFrom<&Settlement> for Settling {
    type Error = Error;

    fn try_from(settlement: &Settlement) -> Result<Self> {
        let ending = match &settlement.verdict {
            Verdict::Done => Ending::Done,
            Verdict::Skip => Ending::Skip,
            Verdict::Retry(due) => Ending::Retry((*due).into()),
            Verdict::Snooze(due) => Ending::Snooze((*due).into()),
            Verdict::Dead { reason, failed } => Ending::Dead {
                kind: reason.kind.as_str().to_owned(),
                message: reason.message.clone(),
                failed: *failed,
            },
            Verdict::Release { started } => Ending::Release { started: *started },
            unknown => {
                let what = format!("the verdict {unknown:?} is not one that the log can hold");
                return Err(Error::new(ErrorKind::Internal, what).operation("settle"));
            }
        };
        Ok(Self((&settlement.lease).into(), ending))
    }
}

impl From<&Settling> for Settlement {
    fn from(settling: &Settling) -> Self {
        let verdict = match &settling.1 {
            Ending::Done => Verdict::Done,
            Ending::Skip => Verdict::Skip,
            Ending::Retry(due) => Verdict::Retry((*due).into()),
            Ending::Snooze(due) => Verdict::Snooze((*due).into()),
            Ending::Dead { kind, message, failed } => Verdict::Dead {
                reason: DeadReason::new(dq_core::DeadKind::from_name(kind), message.clone()),
                failed: *failed,
            },
            Ending::Release { started } => Verdict::Release { started: *started },
        };
        Self { lease: (&settling.0).into(), verdict }
    }
}

impl From<OwnedOperation> for Operating {
    fn from(operate: OwnedOperation) -> Self {
        match operate {
            OwnedOperation::Replay { jobs, due } => Self::Replay(jobs, due.into()),
            OwnedOperation::Remove { jobs } => Self::Remove(jobs),
            OwnedOperation::Pause => Self::Pause,
            OwnedOperation::Resume => Self::Resume,
            OwnedOperation::Purge => Self::Purge,
        }
    }
}

impl From<&Operating> for OwnedOperation {
    fn from(operating: &Operating) -> Self {
        match operating {
            Operating::Replay(jobs, due) => Self::Replay { jobs: jobs.clone(), due: (*due).into() },
            Operating::Remove(jobs) => Self::Remove { jobs: jobs.clone() },
            Operating::Pause => Self::Pause,
            Operating::Resume => Self::Resume,
            Operating::Purge => Self::Purge,
        }
    }
}

/// Totals as they are written.
pub(crate) fn counts(totals: &Totals) -> Counts {
    let Totals { created, done, skipped, cancelled, replaced, removed } = *totals;
    [created, done, skipped, cancelled, replaced, removed]
}

/// Totals as they were written.
pub(crate) fn totals(counts: Counts) -> Totals {
    let [created, done, skipped, cancelled, replaced, removed] = counts;
    Totals { created, done, skipped, cancelled, replaced, removed }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
