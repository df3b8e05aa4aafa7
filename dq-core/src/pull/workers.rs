//! Who claims from this server, and which jobs each worker runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::lease::PullLease;
use crate::backend::Verdict;
use crate::model::{JobId, QueueName, WorkerInfo};
use crate::runner::RemoteQueue;
use crate::sync::lock;

/// A worker without a job is present for this long after its last call.
const PRESENT_FOR: Duration = Duration::from_secs(60);

/// Workers in an announcement, and jobs of each.
const MAX_WORKERS: usize = 100;
const MAX_JOBS: usize = 10;

/// How many jobs of each queue run.
pub(super) type RunningByQueue = BTreeMap<QueueName, (Arc<RemoteQueue>, usize)>;

/// The workers of this server. All times are by [`Clock::elapsed`](crate::Clock::elapsed).
///
/// It is for people only: after a restart it fills up again with the workers' calls.
#[derive(Debug, Default)]
pub(super) struct Workers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    present: BTreeMap<String, Present>,
    running: HashMap<(QueueName, JobId), Running>,
}

#[derive(Debug)]
struct Present {
    seen: Duration,
    queues: Vec<Arc<RemoteQueue>>,
}

#[derive(Debug)]
struct Running {
    queue: Arc<RemoteQueue>,
    lease: PullLease,
    lateness: Duration,
    since: Duration,
    expires: Duration,
}

impl Workers {
    pub(super) fn asked(&self, worker: &str, queues: Vec<Arc<RemoteQueue>>, now: Duration) {
        lock(&self.0).present.insert(worker.to_owned(), Present { seen: now, queues });
    }

    /// Records that the worker runs a job, from now on unless it is known to run it already.
    pub(super) fn runs(
        &self,
        queue: Arc<RemoteQueue>,
        lease: &PullLease,
        lateness: Duration,
        now: Duration,
    ) {
        let mut state = lock(&self.0);
        let present = Present { seen: now, queues: Vec::new() };
        state.present.entry(lease.worker.clone()).or_insert(present).seen = now;
        let expires = now + lease.lease_for();
        let key = (lease.queue.clone(), lease.job);
        match state.running.get_mut(&key).filter(|running| running.lease == *lease) {
            Some(running) => running.expires = expires,
            None => {
                let lease = lease.clone();
                let running = Running { queue, lease, lateness, since: now, expires };
                state.running.insert(key, running);
            }
        }
    }

    /// Forgets a job whose lease is settled or lost. `verdict` is that of a run that counts.
    pub(super) fn ended(&self, lease: &PullLease, verdict: Option<&Verdict>, now: Duration) {
        let mut state = lock(&self.0);
        let key = (lease.queue.clone(), lease.job);
        if state.running.get(&key).is_none_or(|running| running.lease != *lease) {
            return;
        }
        if let (Some(ended), Some(verdict)) = (state.running.remove(&key), verdict) {
            ended.queue.record_run(ended.lateness, ended.since, now, verdict);
        }
    }

    /// Returns the worker that runs a job.
    pub(super) fn of(&self, queue: &QueueName, job: JobId, now: Duration) -> Option<String> {
        let state = lock(&self.0);
        let running = state.running.get(&(queue.clone(), job))?;
        (running.expires > now).then(|| running.lease.worker.clone())
    }

    /// Returns the present workers, and how many jobs of each queue run; empty without workers.
    pub(super) fn present(&self, now: Duration) -> (Vec<WorkerInfo>, RunningByQueue) {
        let mut state = lock(&self.0);
        let State { present, running } = &mut *state;
        running.retain(|_, running| running.expires > now);
        let mut jobs: BTreeMap<&str, Vec<(Duration, JobId)>> = BTreeMap::new();
        let mut queues = BTreeMap::new();
        for Running { queue, lease, since, .. } in running.values() {
            jobs.entry(&lease.worker).or_default().push((*since, lease.job));
            let (_, count) =
                queues.entry(queue.name.clone()).or_insert_with(|| (Arc::clone(queue), 0));
            *count += 1;
        }
        present.retain(|name, worker| {
            now < worker.seen + PRESENT_FOR || jobs.contains_key(name.as_str())
        });
        for queue in present.values().flat_map(|worker| &worker.queues) {
            queues.entry(queue.name.clone()).or_insert_with(|| (Arc::clone(queue), 0));
        }
        let info = |name: &String| {
            let mut jobs = jobs.remove(name.as_str()).unwrap_or_default();
            jobs.sort_unstable();
            let running = jobs.len() as u64;
            let jobs = jobs.into_iter().take(MAX_JOBS).map(|(_, job)| job);
            WorkerInfo::new(name.clone(), running, jobs.collect())
        };
        (present.keys().take(MAX_WORKERS).map(info).collect(), queues)
    }
}
