//! A runner's announcement about itself.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use super::job::JobId;
use super::lateness::LatenessCounts;
use super::priority::Priority;
use super::queue::QueueName;
use super::timestamp::Timestamp;

/// A runner's details, from [`Dq::runners`](crate::Dq::runners).
///
/// Stored as JSON. Later versions may add fields; this version ignores them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunnerInfo {
    /// The format version; [`Self::FORMAT`].
    pub format: u32,
    /// The host name; empty if unknown.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// The version of `dq`.
    pub version: String,
    /// When the runner was built, by its own clock.
    pub started: Timestamp,
    /// Whether the runner is shutting down.
    pub stopping: bool,
    /// Maximum concurrent jobs over all queues.
    pub concurrency: u64,
    /// Number of running jobs.
    pub running: u64,
    /// Milliseconds by which the store's clock is ahead of the runner's; negative if behind, `None`
    /// before the first claim.
    pub skew_ms: Option<i64>,
    /// The longer of the last two claims with its retries, or an unanswered claim's time so far, in
    /// milliseconds; `None` before the first claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_ms: Option<u64>,
    /// The runner's queues.
    pub queues: Vec<RunnerQueue>,
    /// Queues left out because the full list is too large for the store.
    pub omitted_queues: u64,
    /// The workers in other processes that claim jobs through this runner; see
    /// [`PullServer`](crate::PullServer).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerInfo>,
}

/// A worker in another process, which claims jobs through a runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// The worker's own name.
    pub name: String,
    /// Number of jobs that it runs.
    pub running: u64,
    /// Some of these jobs, longest running first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobId>,
}

impl WorkerInfo {
    pub(crate) const fn new(name: String, running: u64, jobs: Vec<JobId>) -> Self {
        Self { name, running, jobs }
    }
}

/// A runner's queue, and its jobs in the last minutes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunnerQueue {
    /// The queue.
    pub queue: QueueName,
    /// Maximum concurrent jobs.
    pub concurrency: u64,
    /// Which queues start first while the runner's slots are scarce.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// How many of the runner's slots only this queue uses.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reserve: u64,
    /// Number of running jobs.
    pub running: u64,
    /// Delays between due times and handler starts, over the last five minutes.
    pub lateness: Histogram,
    /// Handler run times, over the last five minutes.
    pub run_time: Histogram,
    /// Failed runs since the runner was built.
    #[serde(default, skip_serializing_if = "is_default")]
    pub failed: u64,
    /// The last hour's starts, by lateness objective; `None` without an objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<LatenessCounts>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl RunnerInfo {
    /// The format version that this version writes and reads. It rises only when fields change
    /// their meaning.
    pub const FORMAT: u32 = 1;

    /// Returns how many more jobs the runner could start in a queue; `None` if it does not serve
    /// it.
    ///
    /// Zero while it is shutting down.
    pub fn free_slots(&self, queue: &QueueName) -> Option<u64> {
        let served = self.served(queue)?;
        if self.stopping {
            return Some(0);
        }
        let unused = |queue: &RunnerQueue| queue.reserve.saturating_sub(queue.running);
        let others = self.queues.iter().filter(|other| other.queue != *queue).map(unused);
        let of_others = others.fold(0, u64::saturating_add);
        let of_total = self.concurrency.saturating_sub(self.running).saturating_sub(of_others);
        Some(served.concurrency.saturating_sub(served.running).min(of_total))
    }

    pub(crate) fn served(&self, queue: &QueueName) -> Option<&RunnerQueue> {
        self.queues.iter().find(|served| served.queue == *queue)
    }

    /// Returns the worker that runs this job.
    pub fn worker_of(&self, job: JobId) -> Option<&str> {
        let worker = self.workers.iter().find(|worker| worker.jobs.contains(&job));
        worker.map(|worker| &*worker.name)
    }

    /// While the JSON exceeds `max_bytes`, drops workers, then the queues with the fewest runs;
    /// without both it may still exceed it.
    pub(crate) fn encode(mut self, max_bytes: usize) -> Result<Bytes, serde_json::Error> {
        loop {
            let json = serde_json::to_vec(&self)?;
            if json.len() <= max_bytes || (self.queues.is_empty() && self.workers.is_empty()) {
                return Ok(json.into());
            }
            if !self.workers.is_empty() {
                self.workers.truncate(self.workers.len() / 2);
                continue;
            }
            self.queues.sort_by_key(|queue| std::cmp::Reverse(queue.run_time.count()));
            let omitted = self.queues.len().div_ceil(4);
            self.queues.truncate(self.queues.len() - omitted);
            self.omitted_queues += omitted as u64;
        }
    }

    pub(crate) fn decode(json: &[u8]) -> Result<Self, String> {
        let info: Self = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if info.format > Self::FORMAT {
            return Err(format!(
                "its format is {}; this version reads up to {}",
                info.format,
                Self::FORMAT
            ));
        }
        Ok(info)
    }
}

impl RunnerQueue {
    pub(crate) fn new(queue: QueueName, concurrency: u64) -> Self {
        let (lateness, run_time) = (Histogram::default(), Histogram::default());
        Self {
            queue,
            concurrency,
            priority: Priority::default(),
            reserve: 0,
            running: 0,
            lateness,
            run_time,
            failed: 0,
            objective: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const JSON: &str = r#"{"format":1,"host":"h","pid":7,"version":"0.1.0","started":1000,"stopping":false,"concurrency":256,"running":1,"skew_ms":-3,"queues":[{"queue":"Q","concurrency":16,"running":1,"lateness":[2,1],"run_time":[]}],"omitted_queues":0}"#;

    fn read(json: &str) -> RunnerInfo {
        RunnerInfo::decode(json.as_bytes()).unwrap()
    }

    #[test]
    fn the_format_is_stable_and_fields_of_later_versions_are_ignored() {
        let objective = r#""objective":{"objective":"99% < 100ms","in_time":0,"late":0}"#;
        let optional = format!(r#""run_time":[],"failed":12,{objective}"#);
        let all = JSON.replace(r#""run_time":[]"#, &optional).replace("-3,", "-3,\"claim_ms\":12,");
        let slots = r#""concurrency":16,"priority":"high","reserve":4"#;
        let all = all.replace(r#""concurrency":16"#, slots);
        for json in [JSON, &all] {
            assert_eq!(read(json).encode(1_000).unwrap(), json);
            let later = json.replacen('{', r#"{"later":{},"#, 1);
            assert_eq!(read(&later), read(json));
        }
        assert_eq!((read(&all).claim_ms, read(&all).queues[0].failed), (Some(12), 12));
        let other = JSON.replacen(":1,", ":2,", 1);
        assert!(RunnerInfo::decode(other.as_bytes()).unwrap_err().contains("format is 2"));
    }

    #[test]
    fn free_slots_leave_out_the_reserves_of_other_queues() {
        let mut info = read(JSON);
        info.concurrency = 6;
        info.queues.push(RunnerQueue::new(QueueName::new("R").unwrap(), 16));
        (info.queues[1].reserve, info.queues[1].running, info.running) = (4, 1, 2);
        let free = |queue| info.free_slots(&QueueName::new(queue).unwrap());
        assert_eq!(["Q", "R", "S"].map(free), [Some(1), Some(4), None]);
    }

    #[test]
    fn too_large_an_announcement_loses_the_queues_with_the_fewest_runs() {
        let mut large = read(JSON);
        for number in 0..100 {
            let mut queue =
                RunnerQueue::new(QueueName::new(format!("QUEUE_{number}")).unwrap(), 16);
            for _ in 0..number {
                queue.run_time.record(Duration::from_millis(number));
            }
            large.queues.push(queue);
        }
        let json = large.encode(4_096).unwrap();
        assert!(json.len() <= 4_096);
        let decoded = RunnerInfo::decode(&json).unwrap();
        assert_eq!(decoded.queues.len() as u64 + decoded.omitted_queues, 101);
        assert_eq!(decoded.queues[0].queue.as_str(), "QUEUE_99");
    }
}
