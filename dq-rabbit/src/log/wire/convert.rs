//! Conversions between the types of [`dq_core`] and those of the wire format.

use std::time::Duration;

use bytes::Bytes;
use dq_core::machine::OwnedOperation;
use dq_core::{DeadKind, DeadReason, Error, ErrorKind, FencingToken, Headers, JobId, QueueName};

use super::entry::{
    Claim, Due, JobRef, Lease, NewJob, OnConflict, QueueOperation, Renewal, Reschedule, Settlement,
    Target, Verdict,
};

impl From<dq_core::NewJob> for NewJob {
    fn from(job: dq_core::NewJob) -> Self {
        Self {
            id: job.id,
            queue: job.queue,
            key: job.key,
            on_conflict: job.on_conflict.into(),
            due: job.due.into(),
            max_attempts: job.max_attempts,
            payload: job.payload,
            headers: job.headers,
        }
    }
}

impl From<&dq_core::Job> for NewJob {
    fn from(job: &dq_core::Job) -> Self {
        Self {
            id: job.id,
            queue: job.queue.clone(),
            key: job.key.clone(),
            on_conflict: OnConflict::Keep,
            due: Due::At(job.due),
            max_attempts: job.max_attempts,
            payload: job.payload.clone(),
            headers: job.headers.clone(),
        }
    }
}

impl NewJob {
    /// The job to schedule, with this payload instead of its own and without headers.
    pub(crate) fn with_payload(&self, payload: Bytes) -> dq_core::NewJob {
        dq_core::NewJob {
            id: self.id,
            queue: self.queue.clone(),
            key: self.key.clone(),
            on_conflict: self.on_conflict.into(),
            due: self.due.into(),
            payload,
            headers: Headers::new(),
            max_attempts: self.max_attempts,
        }
    }
}

impl From<dq_core::OnConflict> for OnConflict {
    fn from(on_conflict: dq_core::OnConflict) -> Self {
        match on_conflict {
            dq_core::OnConflict::Keep => Self::Keep,
            dq_core::OnConflict::Replace => Self::Replace,
            dq_core::OnConflict::Earliest => Self::Earliest,
            dq_core::OnConflict::Latest => Self::Latest,
        }
    }
}

impl From<OnConflict> for dq_core::OnConflict {
    fn from(on_conflict: OnConflict) -> Self {
        match on_conflict {
            OnConflict::Keep => Self::Keep,
            OnConflict::Replace => Self::Replace,
            OnConflict::Earliest => Self::Earliest,
            OnConflict::Latest => Self::Latest,
        }
    }
}

impl From<dq_core::Due> for Due {
    fn from(due: dq_core::Due) -> Self {
        match due {
            dq_core::Due::At(at) => Self::At(at),
            dq_core::Due::After(delay) => Self::After(millis(delay)),
        }
    }
}

impl From<Due> for dq_core::Due {
    fn from(due: Due) -> Self {
        match due {
            Due::At(at) => Self::At(at),
            Due::After(delay) => Self::After(Duration::from_millis(delay)),
        }
    }
}

impl From<&dq_core::JobRef> for JobRef {
    fn from(job: &dq_core::JobRef) -> Self {
        let target = match &job.target {
            dq_core::Target::Id(id) => Target::Id(*id),
            dq_core::Target::Key(key) => Target::Key(key.clone()),
        };
        Self(job.queue.clone(), target)
    }
}

impl From<&JobRef> for dq_core::JobRef {
    fn from(JobRef(queue, target): &JobRef) -> Self {
        match target {
            Target::Id(id) => Self::new(queue.clone(), *id),
            Target::Key(key) => Self::new(queue.clone(), key.clone()),
        }
    }
}

impl From<&dq_core::Reschedule> for Reschedule {
    fn from(reschedule: &dq_core::Reschedule) -> Self {
        Self((&reschedule.job).into(), reschedule.due.into())
    }
}

impl From<&Reschedule> for dq_core::Reschedule {
    fn from(Reschedule(job, due): &Reschedule) -> Self {
        Self { job: job.into(), due: (*due).into() }
    }
}

impl Claim {
    pub(crate) fn new(wants: &[dq_core::Want], limit: usize, prefetched: Vec<JobId>) -> Self {
        let want =
            |want: &dq_core::Want| (want.queue.clone(), want.max as u64, millis(want.lease_for));
        Self { wants: wants.iter().map(want).collect(), limit: limit as u64, prefetched }
    }

    pub(crate) fn wants(&self) -> Vec<dq_core::Want> {
        let want = |(queue, max, lease): &(QueueName, u64, u64)| dq_core::Want {
            queue: queue.clone(),
            max: usize::try_from(*max).unwrap_or(usize::MAX),
            lease_for: Duration::from_millis(*lease),
        };
        self.wants.iter().map(want).collect()
    }
}

impl From<&dq_core::Lease> for Lease {
    fn from(lease: &dq_core::Lease) -> Self {
        Self(lease.queue.clone(), lease.job, lease.token.0)
    }
}

impl From<&Lease> for dq_core::Lease {
    fn from(Lease(queue, job, token): &Lease) -> Self {
        Self { queue: queue.clone(), job: *job, token: FencingToken(*token) }
    }
}

impl From<&dq_core::Renewal> for Renewal {
    fn from(renewal: &dq_core::Renewal) -> Self {
        Self((&renewal.lease).into(), millis(renewal.lease_for))
    }
}

impl From<&Renewal> for dq_core::Renewal {
    fn from(Renewal(lease, lease_for): &Renewal) -> Self {
        Self { lease: lease.into(), lease_for: Duration::from_millis(*lease_for) }
    }
}

impl TryFrom<&dq_core::Settlement> for Settlement {
    type Error = Error;

    fn try_from(settlement: &dq_core::Settlement) -> dq_core::Result<Self> {
        let verdict = match &settlement.verdict {
            dq_core::Verdict::Done => Verdict::Done,
            dq_core::Verdict::Skip => Verdict::Skip,
            dq_core::Verdict::Retry(due) => Verdict::Retry((*due).into()),
            dq_core::Verdict::Snooze(due) => Verdict::Snooze((*due).into()),
            dq_core::Verdict::Dead { reason, failed } => Verdict::Dead {
                kind: reason.kind.as_str().to_owned(),
                message: reason.message.clone(),
                failed: *failed,
            },
            dq_core::Verdict::Release { started } => Verdict::Release { started: *started },
            unknown => {
                let what = format!("the verdict {unknown:?} has no form in the log");
                return Err(Error::new(ErrorKind::Internal, what).operation("settle"));
            }
        };
        Ok(Self((&settlement.lease).into(), verdict))
    }
}

impl From<&Settlement> for dq_core::Settlement {
    fn from(Settlement(lease, verdict): &Settlement) -> Self {
        let verdict = match verdict {
            Verdict::Done => dq_core::Verdict::Done,
            Verdict::Skip => dq_core::Verdict::Skip,
            Verdict::Retry(due) => dq_core::Verdict::Retry((*due).into()),
            Verdict::Snooze(due) => dq_core::Verdict::Snooze((*due).into()),
            Verdict::Dead { kind, message, failed } => dq_core::Verdict::Dead {
                reason: DeadReason::new(DeadKind::from_name(kind), message.clone()),
                failed: *failed,
            },
            Verdict::Release { started } => dq_core::Verdict::Release { started: *started },
        };
        Self { lease: lease.into(), verdict }
    }
}

impl From<OwnedOperation> for QueueOperation {
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

impl From<&QueueOperation> for OwnedOperation {
    fn from(operation: &QueueOperation) -> Self {
        match operation {
            QueueOperation::Replay(jobs, due) => {
                Self::Replay { jobs: jobs.clone(), due: (*due).into() }
            }
            QueueOperation::Remove(jobs) => Self::Remove { jobs: jobs.clone() },
            QueueOperation::Pause => Self::Pause,
            QueueOperation::Resume => Self::Resume,
            QueueOperation::Purge => Self::Purge,
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
