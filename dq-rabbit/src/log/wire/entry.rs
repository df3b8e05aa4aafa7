//! Entries and their commands. The order is the wire format, for fields and variants; [`Command`]'s
//! variants have numbers.

use bytes::Bytes;
use dq_core::{
    DeadReason, Ending, Headers, JobId, JobKey, OnConflict, OnRunning, QueueName, Timestamp,
};
use serde::{Deserialize, Serialize};

use super::payload::Payload;

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Random, drawn when the process opens the log.
    pub(crate) producer_id: u64,
    /// Counts the producer's entries from 1 without gaps.
    pub(crate) sequence: u64,
    /// By the writer's clock. Replicas apply the entry as of this time.
    pub(crate) at: Timestamp,
    pub(crate) command: Command,
}

/// A change, or a read that needs its place among changes.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    /// Has no effect. Its producer has applied all earlier entries when it reads this back.
    Barrier,
    Schedule(Vec<NewJob>),
    Cancel(Vec<JobRef>),
    Reschedule(Vec<Reschedule>),
    Claim(Claim),
    /// Of limited queues: how many jobs of each could start at once.
    ClaimLimited(Claim, Vec<u64>),
    Settle(Vec<Settlement>),
    Renew(Vec<Renewal>),
    /// Ends leases that have expired for this producer, unless they were renewed.
    EndLeases(Vec<StandingLease>),
    Operate(QueueName, QueueOperation),
    /// Stores dead jobs, each with the reason.
    Park(Vec<(NewJob, String)>),
    /// Queues without a limit here keep their own. There is no history before the first one.
    SetHistory(HistoryLimits),
    /// Limits a snapshot's bytes and refuses jobs beyond. There is no limit before the first one.
    SetCapacity(u64),
    Announce(Announcement),
    /// Ends this generation. It has no effect in another one.
    Close(u32),
    Snapshot(SnapshotEntry),
    /// An unknown kind that may be skipped.
    Unknown {
        kind: u16,
        body: Bytes,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NewJob {
    pub(crate) id: JobId,
    pub(crate) queue: QueueName,
    pub(super) key: Option<JobKey>,
    pub(super) on_conflict: OnConflict,
    pub(super) on_running: OnRunning,
    pub(super) due: Due,
    pub(super) max_attempts: Option<u32>,
    /// In milliseconds.
    pub(super) remember: u64,
    pub(crate) payload: Payload,
    pub(crate) headers: Headers,
}

/// A due time; a delay is in milliseconds.
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

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Reschedule(pub(super) JobRef, pub(super) Due);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) worker: String,
    /// Queue, maximum number of jobs, lease length in milliseconds.
    pub(super) wants: Vec<(QueueName, u64, u64)>,
    pub(crate) limit: u64,
    pub(crate) prefetched: Vec<JobId>,
}

/// Queue, job and fencing token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Lease(pub(super) QueueName, pub(super) JobId, pub(super) u64);

/// A lease without its times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StandingLease {
    pub(crate) queue: QueueName,
    pub(crate) job: JobId,
    pub(crate) token: u64,
    pub(crate) renewals: u32,
    /// Since the last renewal, in milliseconds.
    pub(crate) lease_for: u64,
}

/// Lease and new length in milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Renewal(pub(super) Lease, pub(super) u64);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settlement(pub(super) Lease, pub(super) Verdict);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Verdict {
    Done,
    Skip(String),
    Retry(Due, String),
    Again(Due, Payload),
    Snooze(Due),
    Dead { kind: String, message: String, failed: bool },
    Release { started: bool },
    Throttle(Due),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum QueueOperation {
    Replay(Vec<JobId>, Due),
    Remove(Vec<JobId>),
    Pause,
    Resume,
    Purge,
    DeclareFlow(Flow),
    OverrideFlow(Option<Flow>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Flow {
    pub(super) max_running: Option<u32>,
    pub(super) group_max_running: Option<u32>,
    /// Jobs, time in nanoseconds, burst.
    pub(super) rate: Option<(u32, u64, u32)>,
}

/// A queue's limits, and what they have let pass.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Gate {
    pub(super) queue: QueueName,
    pub(super) declared: Flow,
    pub(super) overriding: Option<Flow>,
    /// In Unix microseconds.
    pub(super) used: i64,
    pub(super) closed_until: Option<Timestamp>,
}

/// Several snapshots may interleave, so entries carry the offset at their [`Begin`](Self::Begin).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum SnapshotEntry {
    /// The snapshot holds the state right after this entry.
    Begin,
    Part {
        begin: u64,
        number: u32,
        part: SnapshotPart,
    },
    /// Complete if all parts were read.
    End {
        begin: u64,
        parts: u32,
    },
}

/// There is one header, and any number of others.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum SnapshotPart {
    Header(Box<SnapshotHeader>),
    Jobs(Vec<SnapshotJob>),
    Ended(Vec<EndedJob>),
    /// An ended job's id and due time, and the pin's end.
    Pins(Vec<(JobId, Timestamp, Timestamp)>),
    /// The announcement's name, information, begin and end.
    Runners(Vec<(String, Bytes, Timestamp, Timestamp)>),
    Leases(Vec<StandingLease>),
    Gates(Vec<Gate>),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SnapshotHeader {
    pub(crate) log_id: u64,
    pub(crate) last_seq: u64,
    pub(crate) last_token: u64,
    pub(crate) last_ended: u64,
    /// Producer id, last sequence number, and that entry's number among all.
    pub(crate) producers: Vec<(u64, u64, u64)>,
    /// Name, whether it is paused, totals.
    pub(crate) queues: Vec<(QueueName, bool, Totals)>,
    pub(crate) history: HistoryLimits,
    pub(crate) capacity: Option<u64>,
}

/// A job without payload and headers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(super) queue: QueueName,
    pub(super) key: Option<JobKey>,
    pub(super) due: Timestamp,
    /// `None` if equal to `due`.
    pub(super) first_due: Option<Timestamp>,
    pub(super) created: Timestamp,
    pub(super) max_attempts: Option<u32>,
    /// Attempts, deliveries, losses.
    pub(super) counts: [u32; 3],
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SnapshotJob {
    pub(crate) job: Job,
    pub(crate) seq: u64,
    pub(crate) state: SnapshotJobState,
    pub(crate) notes: Option<JobNotes>,
    pub(crate) payload: Payload,
    pub(crate) headers: Headers,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum SnapshotJobState {
    Waiting,
    /// Fencing token and expiry.
    Leased(u64, Timestamp),
    Dead(DeadReason, Timestamp),
    /// Waiting for room in its group.
    Parked,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JobNotes {
    pub(super) last_error: Option<String>,
    pub(super) worker: Option<String>,
    pub(super) leased_since: Option<Timestamp>,
    /// In milliseconds.
    pub(super) remember: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EndedJob {
    pub(super) seq: u64,
    pub(super) job: Job,
    pub(super) leased_since: Option<Timestamp>,
    pub(super) worker: Option<String>,
    pub(super) last_error: Option<String>,
    pub(super) ending: Ending,
    pub(super) reason: Option<String>,
    pub(super) at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HistoryLimits {
    pub(super) default: HistoryLimit,
    pub(super) queues: Vec<(QueueName, HistoryLimit)>,
}

/// Maximum number, and age in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HistoryLimit(pub(super) u32, pub(super) u64);

/// Name, information, and validity in milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Announcement(pub(super) String, pub(super) Bytes, pub(super) u64);

/// Created, done, skipped, cancelled, replaced, removed.
pub(crate) type Totals = [u64; 6];
