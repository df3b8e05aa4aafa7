//! The steps of a comparison.
//!
//! Queues, keys, jobs and leases are numbers from zero, so that a step means the same on every
//! store. Jobs are numbered in schedule order, leases in grant order. Any number is valid: it wraps
//! around at [`QUEUES`], [`KEYS`], or the job or lease count.

use dq_core::OnConflict;

pub(super) const QUEUES: u8 = 3;
pub(super) const KEYS: u8 = 3;
pub(super) const GROUPS: u8 = 2;

/// One call, or a clock change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Schedules new jobs in one call.
    Schedule(Vec<JobSpec>),
    /// Schedules a job again: in its own queue, or by mistake in this one.
    Repeat(usize, Option<u8>),
    /// Claims jobs.
    Claim {
        /// Queues, each with its maximum job count.
        wants: Vec<(u8, usize)>,
        /// Maximum job count in total.
        limit: usize,
        /// Lease length in milliseconds, minus one, because a lease cannot be empty.
        lease: u16,
    },
    /// Settles leases, held or lost, in one call.
    Settle(Vec<(usize, Ending)>),
    /// Renews leases, held or lost, in one call, for this many milliseconds plus one.
    Renew(Vec<usize>, u16),
    /// Cancels jobs in one call.
    Cancel(Vec<JobChoice>),
    /// Reschedules jobs in one call.
    Reschedule(Vec<(JobChoice, DueTime)>),
    /// Replays a queue's dead jobs, or this job.
    Replay(u8, Option<usize>, DueTime),
    /// Removes a queue's dead jobs, or this job.
    Remove(u8, Option<usize>),
    /// Pauses (`true`) or resumes a queue.
    Pause(u8, bool),
    /// Declares a queue's limits (`false`), or overrides them (`true`).
    Flow(u8, bool, FlowSpec),
    /// Removes the override of a queue's limits.
    Unlimit(u8),
    /// Purges a queue.
    Purge(u8),
    /// Advances the clock by milliseconds.
    Wait(u16),
    /// Sets the clock back by milliseconds. All leases are renewed before and after.
    SetBack(u16),
}

/// A new job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    /// Its queue.
    pub queue: u8,
    /// Its key.
    pub key: Option<u8>,
    /// Its group.
    pub group: Option<u8>,
    /// The policy if a live job has the key.
    pub on_conflict: OnConflict,
    /// Whether the job detaches a running one from the key.
    pub detach: bool,
    /// How many milliseconds the id stays pinned after the end.
    pub remember: u16,
    /// Its due time.
    pub due: DueTime,
}

/// Limits of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowSpec {
    /// Maximum number of running jobs.
    pub max_running: Option<u32>,
    /// Maximum number of running jobs of a group.
    pub group_max_running: Option<u32>,
    /// Jobs, the time in milliseconds, and the burst.
    pub rate: Option<(u32, u16, u32)>,
}

/// A due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DueTime {
    /// Milliseconds after the start of the comparison.
    At(u16),
    /// Milliseconds from now.
    After(u16),
}

/// The target of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobChoice {
    /// A job in its own queue.
    Number(usize),
    /// A job in this queue, which may be wrong.
    InQueue(usize, u8),
    /// The live job with a key: queue, then key.
    Key(u8, u8),
}

/// How a lease is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The job is done.
    Done,
    /// The job is skipped.
    Skip,
    /// The attempt failed; the next one is due at this time.
    Retry(DueTime),
    /// The job is postponed without counting an attempt.
    Snooze(DueTime),
    /// The same, and the queue is closed until then.
    Throttle(DueTime),
    /// The job is dead; the flag says whether a failed attempt counts.
    Dead(bool),
    /// The next step is due at this time, with this number as payload.
    Again(DueTime, u8),
    /// The job is handed back; the flag says whether its handler had started.
    Release(bool),
}
