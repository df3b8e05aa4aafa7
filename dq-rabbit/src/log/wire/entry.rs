//! Entries of the log and their commands. The order of the fields, and of the variants of other enums
//! than [`Command`], is the wire format.

use bytes::Bytes;
use dq_core::{DeadReason, Ending, Headers, JobId, JobKey, QueueName, Timestamp};
use serde::{Deserialize, Serialize};

use super::payload::Payload;

/// One command of one producer.
#[derive(Debug, Clone)]
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

/// A state change, or a read that needs its place in the order of changes. [`kinds`](super::kinds)
/// has the number of each in the log.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    /// Changes nothing. Its producer has applied all earlier entries when it reads this one back.
    Barrier,
    /// Stores jobs.
    Schedule(Vec<NewJob>),
    Cancel(Vec<JobRef>),
    Reschedule(Vec<Reschedule>),
    Claim(Claim),
    Settle(Vec<Settlement>),
    Renew(Vec<Renewal>),
    /// Ends leases that have lapsed by the clock of this producer, unless they were renewed since.
    EndLeases(Vec<StandingLease>),
    Operate(QueueName, QueueOperation),
    /// Stores foreign messages as dead jobs, each with the reason.
    Park(Vec<(NewJob, String)>),
    /// Changes the limits of the history; queues that it does not name keep their own. Before the
    /// first of these, there is no history.
    SetHistory(HistoryLimits),
    /// Limits what a snapshot may take, in bytes; jobs beyond it are refused. Before the first of
    /// these, there is no limit.
    SetCapacity(u64),
    /// Announces a runner.
    Announce(Announcement),
    /// Ends the generation with this number: the log goes on in the next one. No effect in another
    /// generation.
    Close(u32),
    /// An entry of a snapshot of the state.
    Snapshot(SnapshotEntry),
    /// An entry of a kind that this version does not know, and that may be skipped.
    Unknown {
        kind: u16,
        body: Bytes,
    },
}

/// A job to store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NewJob {
    pub(crate) id: JobId,
    pub(crate) queue: QueueName,
    pub(super) key: Option<JobKey>,
    pub(super) on_conflict: OnConflict,
    pub(super) on_running: OnRunning,
    pub(super) due: Due,
    pub(super) max_attempts: Option<u32>,
    /// How long the id stays pinned after the end of the job, in milliseconds.
    pub(super) remember: u64,
    pub(crate) payload: Payload,
    pub(crate) headers: Headers,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum OnConflict {
    Keep,
    Replace,
    Earliest,
    Latest,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum OnRunning {
    Refuse,
    Detach,
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
    /// The name of the claimer.
    pub(crate) worker: String,
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

/// A lease that stands, without its times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StandingLease {
    pub(crate) queue: QueueName,
    pub(crate) job: JobId,
    /// The fencing token.
    pub(crate) token: u64,
    /// How often the lease was renewed.
    pub(crate) renewals: u32,
    /// Its length since the last renewal, in milliseconds.
    pub(crate) lease_for: u64,
}

/// A lease and its new length in milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Renewal(pub(super) Lease, pub(super) u64);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settlement(pub(super) Lease, pub(super) Verdict);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Verdict {
    Done,
    /// With the reason.
    Skip(String),
    /// With the error.
    Retry(Due, String),
    /// With the payload of the next step.
    Again(Due, Payload),
    Snooze(Due),
    Dead {
        kind: String,
        message: String,
        failed: bool,
    },
    Release {
        started: bool,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum QueueOperation {
    Replay(Vec<JobId>, Due),
    Remove(Vec<JobId>),
    Pause,
    Resume,
    Purge,
}

/// An entry of a snapshot. Snapshots of several processes may interleave, so all entries but the first
/// carry the offset of their [`Begin`](Self::Begin).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum SnapshotEntry {
    /// The snapshot holds the state right after this entry.
    Begin,
    Part {
        begin: u64,
        /// Number of this part, from 0.
        number: u32,
        part: SnapshotPart,
    },
    /// The number of parts. The snapshot is complete if all of them were read.
    End { begin: u64, parts: u32 },
}

/// A part of a state. There is one header; of the others there may be any number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum SnapshotPart {
    Header(Box<SnapshotHeader>),
    Jobs(Vec<SnapshotJob>),
    Ended(Vec<EndedJob>),
    /// Pinned ids: id and due time of the ended job, and until when it is pinned.
    Pins(Vec<(JobId, Timestamp, Timestamp)>),
    /// Runners: name, information, and from when until when the announcement is valid.
    Runners(Vec<(String, Bytes, Timestamp, Timestamp)>),
    Leases(Vec<StandingLease>),
}

/// What a state has once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SnapshotHeader {
    pub(crate) log_id: u64,
    /// `seq` of the job that was stored last.
    pub(crate) last_seq: u64,
    /// Fencing token of the lease that was granted last.
    pub(crate) last_token: u64,
    /// `seq` of the job that ended last.
    pub(crate) last_ended: u64,
    /// Producer id, last sequence number, and the number of that entry among those of all producers.
    pub(crate) producers: Vec<(u64, u64, u64)>,
    /// Name, whether it is paused, and totals.
    pub(crate) queues: Vec<(QueueName, bool, Totals)>,
    pub(crate) history: HistoryLimits,
    /// See [`Command::SetCapacity`].
    pub(crate) capacity: Option<u64>,
}

/// A job, without its payload and its headers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(super) queue: QueueName,
    pub(super) key: Option<JobKey>,
    pub(super) due: Timestamp,
    /// `None` if it is equal to `due`.
    pub(super) first_due: Option<Timestamp>,
    pub(super) created: Timestamp,
    pub(super) max_attempts: Option<u32>,
    /// Attempts, deliveries, losses.
    pub(super) counts: [u32; 3],
}

/// A job that has not ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SnapshotJob {
    pub(crate) job: Job,
    /// Number in the order in which jobs were stored.
    pub(crate) seq: u64,
    pub(crate) state: SnapshotJobState,
    pub(crate) notes: Option<JobNotes>,
    pub(crate) payload: Payload,
    pub(crate) headers: Headers,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum SnapshotJobState {
    Waiting,
    /// Fencing token and end of the lease.
    Leased(u64, Timestamp),
    /// Why and when the job died.
    Dead(DeadReason, Timestamp),
}

/// What is kept of a job for operators, and for its end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JobNotes {
    pub(super) last_error: Option<String>,
    pub(super) worker: Option<String>,
    pub(super) leased_since: Option<Timestamp>,
    /// In milliseconds.
    pub(super) remember: u64,
}

/// A job of the history.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EndedJob {
    /// Number in the order in which jobs ended.
    pub(super) seq: u64,
    pub(super) job: Job,
    pub(super) leased_since: Option<Timestamp>,
    pub(super) worker: Option<String>,
    pub(super) last_error: Option<String>,
    pub(super) ending: Ending,
    pub(super) reason: Option<String>,
    pub(super) at: Timestamp,
}

/// Limits of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HistoryLimits {
    pub(super) default: HistoryLimit,
    pub(super) queues: Vec<(QueueName, HistoryLimit)>,
}

/// Maximum number of ended jobs, and their maximum age in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HistoryLimit(pub(super) u32, pub(super) u64);

/// A runner: its name, what it says of itself, and for how many milliseconds that is valid.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Announcement(pub(super) String, pub(super) Bytes, pub(super) u64);

/// Totals of a queue: created, done, skipped, cancelled, replaced, removed.
pub(crate) type Totals = [u64; 6];
