//! One call of a sequence, in terms that mean something on any store: small numbers instead of
//! names, ids and tokens.

use dq_core::OnConflict;

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Stores new jobs, in one call.
    Schedule(Vec<New>),
    /// Stores the job of that number again, in its own queue or, by mistake, in this one.
    Repeat(usize, Option<u8>),
    /// Asks for this much of each of these queues, with leases of so many milliseconds.
    Claim {
        /// Queue and number of jobs.
        wants: Vec<(u8, usize)>,
        /// In all.
        limit: usize,
        /// Milliseconds.
        lease: u16,
    },
    /// Ends leases given out so far, held or not, in one call.
    Settle(Vec<(usize, Handle)>),
    /// Renews leases given out so far, held or not, in one call.
    Renew(Vec<usize>, u16),
    /// Takes jobs back.
    Cancel(Vec<Which>),
    /// Moves a job.
    Move(Which, Moment),
    /// Replays the dead of a queue, or the job of that number.
    Replay(u8, Option<usize>, Moment),
    /// Removes the dead of a queue, or the job of that number.
    Remove(u8, Option<usize>),
    /// Pauses (`true`) or resumes.
    Pause(u8, bool),
    /// Purges a queue.
    Purge(u8),
    /// Lets so many milliseconds pass.
    Wait(u16),
    /// Sets the clock back by so many milliseconds, as when a machine's time is corrected.
    SetBack(u16),
}

/// A new job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct New {
    /// Its queue.
    pub queue: u8,
    /// Its key.
    pub key: Option<u8>,
    /// What happens if the key is taken.
    pub on_conflict: OnConflict,
    /// When it is due.
    pub due: Moment,
}

/// A time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// That many milliseconds after the beginning, so before or after now.
    At(u16),
    /// That many milliseconds after now.
    After(u16),
}

/// A job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The job of that number, in its own queue.
    Number(usize),
    /// The job of that number, looked for in this queue.
    Astray(usize, u8),
    /// The live job of this key in this queue.
    Key(u8, u8),
}

/// How a lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handle {
    /// Done.
    Done,
    /// Skipped.
    Skip,
    /// Failed.
    Retry(Moment),
    /// Not yet.
    Snooze(Moment),
    /// Dead, and whether that was a failed attempt.
    Dead(bool),
    /// Handed back, and whether it was started.
    Release(bool),
}
