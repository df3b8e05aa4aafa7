//! Conversions between [`dq_core`]'s types and the wire format.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    DeadKind, DeadReason, Error, ErrorKind, FencingToken, Headers, JobId, Operation, QueueName,
};

use super::entry::{
    Claim, Due, JobRef, Lease, NewJob, QueueOperation, Renewal, Reschedule, Settlement,
    StandingLease, Target, Verdict,
};

impl From<dq_core::NewJob> for NewJob {
    fn from(job: dq_core::NewJob) -> Self {
        Self {
            id: job.id,
            queue: job.queue,
            key: job.key,
            on_conflict: job.on_conflict,
            on_running: job.on_running,
            due: job.due.into(),
            max_attempts: job.max_attempts,
            remember: millis(job.remember),
            payload: job.payload.into(),
            headers: job.headers,
        }
    }
}

impl NewJob {
    /// Leaves out payload and headers, except the group.
    pub(crate) fn to_core(&self) -> dq_core::NewJob {
        let due: dq_core::Due = self.due.into();
        let mut new = dq_core::NewJob::new(self.id, self.queue.clone(), due, Bytes::new());
        new.key.clone_from(&self.key);
        new.on_conflict = self.on_conflict;
        new.on_running = self.on_running;
        new.max_attempts = self.max_attempts;
        new.remember = Duration::from_millis(self.remember);
        match self.headers.get(Headers::GROUP) {
            Some(group) => new.group(group),
            None => new,
        }
    }
}

/// The error if a newer `dq-core` has added the value.
fn unknown_form(value: &dyn std::fmt::Debug) -> Error {
    Error::new(ErrorKind::Internal, format!("{value:?} has no form in the log"))
        .remedy("use versions of dq-core and dq-rabbit that belong together")
}

impl From<dq_core::Due> for Due {
    fn from(due: dq_core::Due) -> Self {
        match due {
            dq_core::Due::At(at) => Self::At(at),
            dq_core::Due::After(delay) => Self::After(millis_up(delay)),
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
    pub(crate) fn new(params: &dq_core::ClaimParams<'_>, prefetched: Vec<JobId>) -> Self {
        let want =
            |want: &dq_core::Want| (want.queue.clone(), want.max as u64, millis(want.lease_for));
        Self {
            worker: params.worker.to_owned(),
            wants: params.wants.iter().map(want).collect(),
            limit: params.limit as u64,
            prefetched,
        }
    }

    /// `starting` says how many jobs of each queue can start at once; without it, all.
    pub(crate) fn wants(&self, starting: Option<&[u64]>) -> Vec<dq_core::Want> {
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let want = |(index, (queue, max, lease)): (usize, &(QueueName, u64, u64))| {
            let want =
                dq_core::Want::new(queue.clone(), count(*max), Duration::from_millis(*lease));
            match starting.and_then(|starting| starting.get(index)) {
                Some(starting) => want.starting(count(*starting)),
                None => want,
            }
        };
        self.wants.iter().enumerate().map(want).collect()
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

impl StandingLease {
    pub(crate) fn granted(lease: dq_core::Lease, lease_for: Duration) -> Self {
        let dq_core::Lease { queue, job, token } = lease;
        Self { queue, job, token: token.0, renewals: 0, lease_for: millis(lease_for) }
    }
}

impl From<&StandingLease> for dq_core::Lease {
    fn from(lease: &StandingLease) -> Self {
        Self { queue: lease.queue.clone(), job: lease.job, token: FencingToken(lease.token) }
    }
}

impl From<&dq_core::Renewal> for Renewal {
    fn from(renewal: &dq_core::Renewal) -> Self {
        Self((&renewal.lease).into(), millis(renewal.lease_for))
    }
}

impl From<&Renewal> for dq_core::Renewal {
    fn from(Renewal(lease, lease_for): &Renewal) -> Self {
        Self::new(lease.into(), Duration::from_millis(*lease_for))
    }
}

impl TryFrom<&dq_core::Settlement> for Settlement {
    type Error = Error;

    fn try_from(settlement: &dq_core::Settlement) -> dq_core::Result<Self> {
        let verdict = match &settlement.verdict {
            dq_core::Verdict::Done => Verdict::Done,
            dq_core::Verdict::Skip { reason } => Verdict::Skip(reason.clone()),
            dq_core::Verdict::Retry { due, error } => Verdict::Retry((*due).into(), error.clone()),
            dq_core::Verdict::Again { due, payload } => {
                Verdict::Again((*due).into(), payload.clone().into())
            }
            dq_core::Verdict::Snooze(due) => Verdict::Snooze((*due).into()),
            dq_core::Verdict::Dead { reason, failed } => Verdict::Dead {
                kind: reason.kind.as_str().to_owned(),
                message: reason.message.clone(),
                failed: *failed,
            },
            dq_core::Verdict::Release { started } => Verdict::Release { started: *started },
            dq_core::Verdict::Throttle(due) => Verdict::Throttle((*due).into()),
            unknown => return Err(unknown_form(unknown).operation("settle")),
        };
        Ok(Self((&settlement.lease).into(), verdict))
    }
}

impl Settlement {
    /// Leaves out the next step's payload.
    pub(crate) fn to_core(&self) -> dq_core::Settlement {
        let Self(lease, verdict) = self;
        let verdict = match verdict {
            Verdict::Done => dq_core::Verdict::Done,
            Verdict::Skip(reason) => dq_core::Verdict::skip(reason),
            Verdict::Retry(due, error) => dq_core::Verdict::retry((*due).into(), error),
            Verdict::Again(due, _) => {
                dq_core::Verdict::Again { due: (*due).into(), payload: Bytes::new() }
            }
            Verdict::Snooze(due) => dq_core::Verdict::Snooze((*due).into()),
            Verdict::Dead { kind, message, failed } => dq_core::Verdict::Dead {
                reason: DeadReason::new(DeadKind::from_name(kind), message.clone()),
                failed: *failed,
            },
            Verdict::Release { started } => dq_core::Verdict::Release { started: *started },
            Verdict::Throttle(due) => dq_core::Verdict::Throttle((*due).into()),
        };
        dq_core::Settlement::new(lease.into(), verdict)
    }
}

impl TryFrom<Operation<'_>> for QueueOperation {
    type Error = Error;

    fn try_from(operation: Operation<'_>) -> dq_core::Result<Self> {
        Ok(match operation {
            Operation::Replay { jobs, due, .. } => Self::Replay(jobs.to_vec(), due.into()),
            Operation::Remove { jobs, .. } => Self::Remove(jobs.to_vec()),
            Operation::Pause { .. } => Self::Pause,
            Operation::Resume { .. } => Self::Resume,
            Operation::Purge { .. } => Self::Purge,
            Operation::DeclareFlow { flow, .. } => Self::DeclareFlow(flow.into()),
            Operation::OverrideFlow { flow, .. } => Self::OverrideFlow(flow.map(Into::into)),
            unknown => return Err(unknown_form(&unknown).operation("operate")),
        })
    }
}

impl QueueOperation {
    pub(crate) fn to_core<'a>(&'a self, queue: &'a QueueName) -> Operation<'a> {
        match self {
            Self::Replay(jobs, due) => Operation::Replay { queue, jobs, due: (*due).into() },
            Self::Remove(jobs) => Operation::Remove { queue, jobs },
            Self::Pause => Operation::Pause { queue },
            Self::Resume => Operation::Resume { queue },
            Self::Purge => Operation::Purge { queue },
            Self::DeclareFlow(flow) => Operation::DeclareFlow { queue, flow: (*flow).into() },
            Self::OverrideFlow(flow) => {
                Operation::OverrideFlow { queue, flow: flow.map(Into::into) }
            }
        }
    }
}

/// Converts to milliseconds, rounded down.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Converts to milliseconds, rounded up, because a shorter delay makes a job early.
fn millis_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
