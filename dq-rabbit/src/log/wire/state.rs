//! Conversions of what snapshots hold: jobs, notes, ended jobs, limits and announcements.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{Ended, JobState, JobView, QueueName, RateState, Timestamp, machine};

use super::convert::millis;
use super::entry::{
    Announcement, EndedJob, Flow, Gate, HistoryLimit, HistoryLimits, Job, JobNotes,
};

pub(crate) fn other_first_due(job: &dq_core::Job) -> Option<Timestamp> {
    (job.first_due != job.due).then_some(job.first_due)
}

impl From<&dq_core::Job> for Job {
    fn from(job: &dq_core::Job) -> Self {
        Self {
            id: job.id,
            queue: job.queue.clone(),
            key: job.key.clone(),
            due: job.due,
            first_due: other_first_due(job),
            created: job.created,
            max_attempts: job.max_attempts,
            counts: [job.attempts, job.deliveries, job.losses],
        }
    }
}

impl Job {
    /// Leaves out payload and headers.
    pub(crate) fn into_core(self) -> dq_core::Job {
        let mut job = dq_core::Job::new(self.id, self.queue, self.due, self.created, Bytes::new());
        job.key = self.key;
        job.first_due = self.first_due.unwrap_or(self.due);
        job.max_attempts = self.max_attempts;
        [job.attempts, job.deliveries, job.losses] = self.counts;
        job
    }
}

impl From<&machine::JobNotes> for JobNotes {
    fn from(notes: &machine::JobNotes) -> Self {
        Self {
            last_error: notes.last_error.clone(),
            worker: notes.worker.as_deref().map(str::to_owned),
            leased_since: notes.leased_since,
            remember: millis(notes.remember),
        }
    }
}

impl From<JobNotes> for machine::JobNotes {
    fn from(notes: JobNotes) -> Self {
        Self {
            last_error: notes.last_error,
            worker: notes.worker.map(Into::into),
            leased_since: notes.leased_since,
            remember: Duration::from_millis(notes.remember),
        }
    }
}

impl EndedJob {
    pub(crate) fn new(seq: u64, view: &JobView) -> Option<Self> {
        let Ended { ending, reason, at, .. } = view.ended.clone()?;
        Some(Self {
            seq,
            job: (&view.job).into(),
            leased_since: view.leased_since,
            worker: view.worker.clone(),
            last_error: view.last_error.clone(),
            ending,
            reason,
            at,
        })
    }
}

impl From<EndedJob> for (u64, JobView) {
    fn from(ended: EndedJob) -> Self {
        let mut view = JobView::new(ended.job.into_core(), JobState::Ended);
        view.leased_since = ended.leased_since;
        view.worker = ended.worker;
        view.last_error = ended.last_error;
        let mut end = Ended::new(ended.ending, ended.at);
        end.reason = ended.reason;
        view.ended = Some(end);
        (ended.seq, view)
    }
}

impl From<dq_core::Flow> for Flow {
    fn from(flow: dq_core::Flow) -> Self {
        let rate = flow.rate.map(|rate| {
            let (jobs, per, burst) = rate.parts();
            (jobs, u64::try_from(per.as_nanos()).unwrap_or(u64::MAX), burst)
        });
        let dq_core::Flow { max_running, group_max_running, .. } = flow;
        Self { max_running, group_max_running, rate }
    }
}

impl From<Flow> for dq_core::Flow {
    /// A rate that this version does not take, which none has written, counts as no rate.
    fn from(flow: Flow) -> Self {
        let mut core = Self::UNLIMITED;
        core.max_running = flow.max_running;
        core.group_max_running = flow.group_max_running;
        core.rate = flow.rate.and_then(|(jobs, per, burst)| {
            dq_core::Rate::from_parts(jobs, Duration::from_nanos(per), burst).ok()
        });
        core
    }
}

impl From<(QueueName, machine::Gate)> for Gate {
    fn from((queue, gate): (QueueName, machine::Gate)) -> Self {
        Self {
            queue,
            declared: gate.declared.into(),
            overriding: gate.overriding.map(Into::into),
            used: gate.rate.0,
            closed_until: gate.closed_until,
        }
    }
}

impl From<Gate> for (QueueName, machine::Gate) {
    fn from(gate: Gate) -> Self {
        let core = machine::Gate {
            declared: gate.declared.into(),
            overriding: gate.overriding.map(Into::into),
            rate: RateState(gate.used),
            closed_until: gate.closed_until,
        };
        (gate.queue, core)
    }
}

impl From<&dq_core::HistoryLimits> for HistoryLimits {
    fn from(limits: &dq_core::HistoryLimits) -> Self {
        let limit = |limit: &dq_core::HistoryLimit| HistoryLimit(limit.max, millis(limit.age));
        let queues = limits.queues.iter();
        Self {
            default: limit(&limits.default.unwrap_or_default()),
            queues: queues.map(|(queue, of_queue)| (queue.clone(), limit(of_queue))).collect(),
        }
    }
}

impl From<&HistoryLimits> for dq_core::HistoryLimits {
    fn from(HistoryLimits { default, queues }: &HistoryLimits) -> Self {
        let limit = |HistoryLimit(max, age): &HistoryLimit| {
            dq_core::HistoryLimit::new(*max, Duration::from_millis(*age))
        };
        let mut limits = Self::all(limit(default));
        limits.queues = queues.iter().map(|(queue, own)| (queue.clone(), limit(own))).collect();
        limits
    }
}

impl HistoryLimits {
    /// Queues that these do not name keep their own limits, which another process may have set.
    pub(crate) fn apply_to(&self, limits: &mut dq_core::HistoryLimits) {
        let own = dq_core::HistoryLimits::from(self);
        limits.default = own.default;
        limits.queues.extend(own.queues);
    }
}

impl From<dq_core::Announcement> for Announcement {
    fn from(announcement: dq_core::Announcement) -> Self {
        Self(announcement.name, announcement.info, millis(announcement.ttl))
    }
}

impl From<Announcement> for dq_core::Announcement {
    fn from(Announcement(name, info, ttl): Announcement) -> Self {
        Self::new(name, info, Duration::from_millis(ttl))
    }
}
