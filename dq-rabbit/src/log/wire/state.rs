//! Conversions of notes, ended jobs, history limits and announcements.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{Ended, Job, JobId, JobState, JobView, machine};

use super::convert::millis;
use super::entry::{Announcement, EndedJob, HistoryLimit, HistoryLimits, JobNotes};

impl JobNotes {
    pub(crate) fn new(job: JobId, notes: &machine::JobNotes) -> Self {
        Self {
            job,
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
    /// `None` if the job has not ended.
    pub(crate) fn new(seq: u64, view: JobView) -> Option<Self> {
        let JobView { job, leased_since, worker, last_error, ended, .. } = view;
        let Ended { ending, reason, at, .. } = ended?;
        Some(Self {
            seq,
            id: job.id,
            queue: job.queue,
            key: job.key,
            due: job.due,
            created: job.created,
            max_attempts: job.max_attempts,
            counts: [job.attempts, job.deliveries, job.losses],
            leased_since,
            worker,
            last_error,
            ending,
            reason,
            at,
        })
    }
}

impl From<EndedJob> for (u64, JobView) {
    fn from(ended: EndedJob) -> Self {
        let mut job = Job::new(ended.id, ended.queue, ended.due, ended.created, Bytes::new());
        job.key = ended.key;
        job.max_attempts = ended.max_attempts;
        [job.attempts, job.deliveries, job.losses] = ended.counts;
        let mut view = JobView::new(job, JobState::Ended);
        view.leased_since = ended.leased_since;
        view.worker = ended.worker;
        view.last_error = ended.last_error;
        let mut end = Ended::new(ended.ending, ended.at);
        end.reason = ended.reason;
        view.ended = Some(end);
        (ended.seq, view)
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
    /// Changes limits to these. Queues that these do not name keep their own: another process may
    /// have set them.
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
