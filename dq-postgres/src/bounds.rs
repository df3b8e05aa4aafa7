//! Bounds from which claims read, for each queue, kept by the process.
//!
//! The index entries of claimed and deleted jobs stay while any old snapshot can see them: a
//! report, a backup, a standby's feedback. A claim from the head of the index would read them all.
//! So each process remembers for each queue up to where no job waits, and begins there.
//!
//! A job comes to wait behind the bounds in two ways. If it is due in the past, the function that
//! stores it adds a row to `rewind`, and the next claim begins there. If its transaction commits
//! more than [`LAG`] after storing it, only a *full claim* finds it, one without bounds. Full
//! claims take at most a fiftieth of the time. Once they are slow, as the first one of a process
//! may be, they lease nothing and run beside the others, which only begin further back if something
//! was found.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dq_core::{QueueName, Timestamp};

/// Bounds stay this far behind the present, in milliseconds, for transactions that are not
/// committed yet.
pub(crate) const LAG: i64 = 500;

/// After a claim that found no room, new jobs wake no listener for this time, in milliseconds:
/// whoever waits for room is called.
pub(crate) const QUIET: i64 = 100;

const MIN_FULL_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest time between full claims, in durations of the last one.
const FULL_SHARE: u32 = 50;

/// A full claim that takes this long would delay the jobs of a claim.
const SLOW_FULL: Duration = Duration::from_millis(5);

/// A queue's bounds; see `claim.sql`. Null means that the process has not claimed yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueBounds {
    pub(crate) waiting: Option<(i64, i64)>,
    pub(crate) expired: Option<i64>,
    pub(crate) expiry: i64,
    pub(crate) last_rewind: Option<i64>,
    pub(crate) rewinds: i64,
    /// Until then, new jobs wake nobody: the last claim left a due job, because the queue's limits
    /// let none start.
    pub(crate) quiet_until: Option<i64>,
    /// How often the bounds were set. A claim's reply does not know leases of claims beside it.
    pub(crate) changes: u64,
}

impl QueueBounds {
    pub(crate) const NEW: Self = Self {
        waiting: None,
        expired: None,
        expiry: i64::MIN,
        last_rewind: None,
        rewinds: 0,
        quiet_until: None,
        changes: 0,
    };

    /// Bounds of a full claim, which begins at the start.
    const fn without_bounds(self) -> Self {
        Self {
            waiting: Some((i64::MIN, 0)),
            expired: Some(i64::MIN),
            changes: self.changes,
            ..Self::NEW
        }
    }
}

#[derive(Debug)]
pub(crate) struct Bounds {
    pub(crate) queues: HashMap<QueueName, QueueBounds>,
    /// When the last full claim ended, and how long it took.
    pub(crate) last_full: (Instant, Duration),
}

impl Default for Bounds {
    fn default() -> Self {
        Self { queues: HashMap::new(), last_full: (Instant::now(), SLOW_FULL) }
    }
}

impl Bounds {
    /// Returns whether the next claim should be full.
    pub(crate) fn claims_fully(&self) -> bool {
        self.is_full_due() && self.last_full.1 < SLOW_FULL
    }

    /// Returns whether a full claim is due beside the others.
    pub(crate) fn needs_slow_full(&self) -> bool {
        self.is_full_due() && self.last_full.1 >= SLOW_FULL
    }

    fn is_full_due(&self) -> bool {
        let (ended, took) = self.last_full;
        ended.elapsed() >= MIN_FULL_INTERVAL.max(took * FULL_SHARE)
    }

    /// Returns from when a new job of the queue wakes listeners.
    pub(crate) fn wakes_at(&self, queue: &QueueName) -> Timestamp {
        let quiet_until = self.queues.get(queue).and_then(|bounds| bounds.quiet_until);
        quiet_until.map_or(Timestamp::EPOCH, Timestamp::from_millis)
    }

    pub(crate) fn of(&self, queue: &QueueName, is_full: bool) -> QueueBounds {
        let known = self.queues.get(queue).copied().unwrap_or(QueueBounds::NEW);
        if is_full { known.without_bounds() } else { known }
    }
}
