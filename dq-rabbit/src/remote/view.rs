//! Jobs and counts in replies.

use bytes::Bytes;
use dq_core::{
    Announced, DeadReason, Ended, Ending, Headers, JobState, JobView, QueueName, QueueStats,
    Timestamp, Totals,
};
use serde::{Deserialize, Serialize};

use crate::log::wire::Job;

/// A [`JobView`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct View {
    job: Job,
    payload: Bytes,
    headers: Headers,
    state: JobState,
    leased_until: Option<Timestamp>,
    leased_since: Option<Timestamp>,
    worker: Option<String>,
    last_error: Option<String>,
    dead: Option<(DeadReason, Timestamp)>,
    ended: Option<(Ending, Option<String>, Timestamp)>,
}

impl From<JobView> for View {
    fn from(view: JobView) -> Self {
        Self {
            job: (&view.job).into(),
            payload: view.job.payload,
            headers: view.job.headers,
            state: view.state,
            leased_until: view.leased_until,
            leased_since: view.leased_since,
            worker: view.worker,
            last_error: view.last_error,
            dead: view.dead,
            ended: view.ended.map(|ended| (ended.ending, ended.reason, ended.at)),
        }
    }
}

impl From<View> for JobView {
    fn from(view: View) -> Self {
        let mut job = view.job.with_payload(view.payload);
        job.headers = view.headers;
        let mut decoded = Self::new(job, view.state);
        decoded.leased_until = view.leased_until;
        decoded.leased_since = view.leased_since;
        decoded.worker = view.worker;
        decoded.last_error = view.last_error;
        decoded.dead = view.dead;
        decoded.ended = view.ended.map(|(ending, reason, at)| {
            let mut ended = Ended::new(ending, at);
            ended.reason = reason;
            ended
        });
        decoded
    }
}

/// A [`QueueStats`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Stats {
    queue: QueueName,
    /// Scheduled, ready, running, dead.
    jobs: [u64; 4],
    paused: bool,
    next_due: Option<Timestamp>,
    /// Created, done, skipped, cancelled, replaced, removed.
    totals: Option<[u64; 6]>,
}

impl From<QueueStats> for Stats {
    fn from(stats: QueueStats) -> Self {
        let totals = |t: Totals| [t.created, t.done, t.skipped, t.cancelled, t.replaced, t.removed];
        Self {
            queue: stats.queue,
            jobs: [stats.scheduled, stats.ready, stats.running, stats.dead],
            paused: stats.paused,
            next_due: stats.next_due,
            totals: stats.totals.map(totals),
        }
    }
}

impl From<Stats> for QueueStats {
    fn from(stats: Stats) -> Self {
        let mut decoded = Self::empty(stats.queue);
        [decoded.scheduled, decoded.ready, decoded.running, decoded.dead] = stats.jobs;
        decoded.paused = stats.paused;
        decoded.next_due = stats.next_due;
        decoded.totals =
            stats.totals.map(|[created, done, skipped, cancelled, replaced, removed]| {
                let mut totals = Totals::default();
                totals.created = created;
                totals.done = done;
                totals.skipped = skipped;
                totals.cancelled = cancelled;
                totals.replaced = replaced;
                totals.removed = removed;
                totals
            });
        decoded
    }
}

/// An [`Announced`] runner: name, information, and from when until when it is valid.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Runner(String, Bytes, Timestamp, Timestamp);

impl From<Announced> for Runner {
    fn from(runner: Announced) -> Self {
        Self(runner.name, runner.info, runner.at, runner.until)
    }
}

impl From<Runner> for Announced {
    fn from(Runner(name, info, at, until): Runner) -> Self {
        Self::new(name, info, at, until)
    }
}
