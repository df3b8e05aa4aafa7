//! Entries of the log and their commands. The order of variants and fields is the wire format.

use bytes::Bytes;
use dq_core::{DeadReason, Headers, JobId, JobKey, QueueName, Timestamp};
use serde::{Deserialize, Serialize};

/// Entries that one process appends as one message of the stream.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EntryBatch<E = Vec<Entry>> {
    /// Offset from which the writer would replay the log: the beginning of the newest complete
    /// snapshot, or of the log. `None` while the writer does not know it.
    pub(crate) replay_from: Option<u64>,
    pub(crate) entries: E,
}

/// One command of one producer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Identifies the writer: a random number, drawn when a process opens the log.
    pub(crate) producer_id: u64,
    /// Number of this entry among those of its producer, from 1 without gaps. Duplicates are
    /// ignored.
    pub(crate) sequence: u64,
    /// The time of the call by the writer's clock. Replicas apply the entry as of this time.
    pub(crate) at: Timestamp,
    pub(crate) command: Command,
}

/// A state change, or a read that needs its place in the order of changes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Changes nothing. Its producer has applied all earlier entries when it reads this one back.
    Barrier,
    Schedule(Vec<NewJob>),
    Cancel(Vec<JobRef>),
    Reschedule(Vec<Reschedule>),
    Claim(Claim),
    Settle(Vec<Settlement>),
    Renew(Vec<Renewal>),
    Operate(QueueName, QueueOperation),
    /// Stores foreign messages as dead jobs, each with the reason.
    Park(Vec<(NewJob, String)>),
    /// One part of a snapshot of the state.
    Snapshot(SnapshotPart),
}

/// A job to store. Replicas keep neither the payload nor the headers; they are fetched when needed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NewJob {
    pub(crate) id: JobId,
    pub(crate) queue: QueueName,
    pub(super) key: Option<JobKey>,
    pub(super) on_conflict: OnConflict,
    pub(super) due: Due,
    pub(super) max_attempts: Option<u32>,
    pub(crate) payload: Bytes,
    pub(crate) headers: Headers,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum OnConflict {
    Keep,
    Replace,
    Earliest,
    Latest,
}

/// A point in time, or a delay in milliseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Due {
    At(Timestamp),
    After(u64),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JobRef(pub(super) QueueName, pub(super) Target);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Target {
    Id(JobId),
    Key(JobKey),
}

/// A job and its new due time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Reschedule(pub(super) JobRef, pub(super) Due);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// For each queue: its name, the maximum number of jobs, and the length of their leases in
    /// milliseconds.
    pub(super) wants: Vec<(QueueName, u64, u64)>,
    /// Maximum number of jobs of all queues together.
    pub(crate) limit: u64,
    /// Jobs whose messages the claimer has prefetched.
    pub(crate) prefetched: Vec<JobId>,
}

/// A lease: queue, job and fencing token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Lease(pub(super) QueueName, pub(super) JobId, pub(super) u64);

/// A lease and its new length in milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Renewal(pub(super) Lease, pub(super) u64);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settlement(pub(super) Lease, pub(super) Verdict);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Verdict {
    Done,
    Skip,
    Retry(Due),
    Snooze(Due),
    Dead { kind: String, message: String, failed: bool },
    Release { started: bool },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum QueueOperation {
    Replay(Option<Vec<JobId>>, Due),
    Remove(Option<Vec<JobId>>),
    Pause,
    Resume,
    Purge,
}

/// A part of a snapshot. Snapshots of several processes may interleave, so all parts but the first
/// carry the offset of their [`Begin`](Self::Begin).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum SnapshotPart {
    /// The snapshot holds the state right after this entry.
    Begin,
    /// Everything but the jobs.
    Header {
        /// Offset of the [`Begin`](Self::Begin).
        begin: u64,
        log_id: u64,
        /// `seq` of the job that was stored last.
        last_seq: u64,
        /// Fencing token of the lease that was granted last.
        last_token: u64,
        /// Producer id, last sequence number, and the offset of that entry.
        producers: Vec<(u64, u64, u64)>,
        /// Name, whether it is paused, and totals.
        queues: Vec<(QueueName, bool, Totals)>,
    },
    /// Offset of the [`Begin`](Self::Begin), and some of the jobs.
    Jobs(u64, Vec<SnapshotJob>),
    /// Offset of the [`Begin`](Self::Begin), and the number of jobs. The snapshot is complete if
    /// all of them were read.
    End { begin: u64, jobs: u64 },
}

/// Totals of a queue: created, done, skipped, cancelled, replaced, removed.
pub(crate) type Totals = [u64; 6];

/// A job of a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SnapshotJob {
    pub(crate) job: NewJob,
    pub(crate) created: Timestamp,
    /// Attempts, deliveries, losses.
    pub(crate) counts: [u32; 3],
    /// Number in the order in which jobs were stored.
    pub(crate) seq: u64,
    pub(crate) state: SnapshotJobState,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum SnapshotJobState {
    Waiting,
    /// Fencing token and end of the lease.
    Leased(u64, Timestamp),
    /// Why and when the job died.
    Dead(DeadReason, Timestamp),
}

impl Command {
    /// Approximate size in the log, in bytes.
    pub(crate) fn approx_size(&self) -> usize {
        let content = match self {
            Self::Schedule(jobs) => jobs.iter().map(NewJob::approx_size).sum(),
            Self::Snapshot(SnapshotPart::Jobs(_, jobs)) => {
                jobs.iter().map(|job| job.job.approx_size()).sum()
            }
            Self::Park(parked) => parked.iter().map(|(job, _)| job.approx_size()).sum(),
            Self::Claim(claim) => 16 * claim.prefetched.len(),
            Self::Settle(settlements) => 64 * settlements.len(),
            Self::Cancel(jobs) => 64 * jobs.len(),
            Self::Reschedule(moves) => 72 * moves.len(),
            Self::Renew(renewals) => 72 * renewals.len(),
            _ => 0,
        };
        64 + content
    }

    /// The job with this index. `None` if the command has no such job, or does not store jobs.
    pub(crate) fn job(&self, index: u32) -> Option<&NewJob> {
        let index = index as usize;
        match self {
            Self::Schedule(jobs) => jobs.get(index),
            Self::Park(parked) => parked.get(index).map(|(job, _)| job),
            Self::Snapshot(SnapshotPart::Jobs(_, jobs)) => jobs.get(index).map(|job| &job.job),
            _ => None,
        }
    }

    /// Frees the payloads and headers of the jobs.
    pub(crate) fn drop_payloads(&mut self) {
        match self {
            Self::Schedule(jobs) => jobs.iter_mut().for_each(NewJob::drop_payload),
            Self::Park(parked) => parked.iter_mut().for_each(|(job, _)| job.drop_payload()),
            Self::Snapshot(SnapshotPart::Jobs(_, jobs)) => {
                jobs.iter_mut().for_each(|job| job.job.drop_payload());
            }
            _ => {}
        }
    }
}

impl NewJob {
    /// Approximate size in the log, in bytes.
    pub(crate) fn approx_size(&self) -> usize {
        96 + self.payload.len() + self.headers.size_bytes()
    }

    fn drop_payload(&mut self) {
        self.payload = Bytes::new();
        self.headers = Headers::new();
    }
}
