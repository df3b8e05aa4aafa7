//! The steps of a comparison.
//!
//! Queues, keys, jobs and leases are numbers from zero, so that a step means the same on every
//! store. Jobs are numbered as they were scheduled, leases as they were granted. Numbers wrap
//! around: any number is valid, modulo the number of queues ([`QUEUES`]), keys ([`KEYS`]), jobs or
//! leases.

use dq_core::OnConflict;

/// Number of queues: few, so that calls conflict.
pub(super) const QUEUES: u8 = 3;
/// Number of keys: few, so that calls conflict.
pub(super) const KEYS: u8 = 3;

/// One call, or a change of the clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Schedules new jobs in one call.
    Schedule(Vec<JobSpec>),
    /// Schedules the job with this number again: in its own queue, or by mistake in this one.
    Repeat(usize, Option<u8>),
    /// Claims jobs.
    Claim {
        /// Queues, each with the maximum number of jobs wanted from it.
        wants: Vec<(u8, usize)>,
        /// Maximum number of jobs from all queues together.
        limit: usize,
        /// Length of the leases in milliseconds, less one, since no lease is empty.
        lease: u16,
    },
    /// Settles the leases with these numbers, live or not, in one call.
    Settle(Vec<(usize, Ending)>),
    /// Renews the leases with these numbers, live or not, in one call, for this many milliseconds
    /// and one more.
    Renew(Vec<usize>, u16),
    /// Cancels jobs.
    Cancel(Vec<JobChoice>),
    /// Reschedules a job.
    Reschedule(JobChoice, DueTime),
    /// Replays all dead jobs of a queue, or the job with this number.
    Replay(u8, Option<usize>, DueTime),
    /// Removes all dead jobs of a queue, or the job with this number.
    Remove(u8, Option<usize>),
    /// Pauses (`true`) or resumes a queue.
    Pause(u8, bool),
    /// Purges a queue.
    Purge(u8),
    /// Advances the clock by this many milliseconds.
    Wait(u16),
    /// Sets the clock back by this many milliseconds, as a time server may. All leases are renewed
    /// before and after.
    SetBack(u16),
}

/// A new job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    /// Its queue.
    pub queue: u8,
    /// Its key.
    pub key: Option<u8>,
    /// The policy if a live job has the key.
    pub on_conflict: OnConflict,
    /// Whether it detaches a running job from the key.
    pub detach: bool,
    /// For how many milliseconds after its end its id is pinned.
    pub remember: u16,
    /// Its due time.
    pub due: DueTime,
}

/// A due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DueTime {
    /// Milliseconds after the start of the comparison: in the past or in the future.
    At(u16),
    /// Milliseconds from now.
    After(u16),
}

/// The target of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobChoice {
    /// The job with this number, in its own queue.
    Number(usize),
    /// The job with this number, in this queue, which may be a wrong one.
    InQueue(usize, u8),
    /// The live job with this key: queue, then key.
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
    /// The job is postponed to this time without counting an attempt.
    Snooze(DueTime),
    /// The job is dead; the flag is whether that counts as a failed attempt.
    Dead(bool),
    /// The next step of the job is due at this time, with a payload of this number.
    Again(DueTime, u8),
    /// The job is handed back; the flag is whether its handler had started.
    Release(bool),
}
