//! Bounds from which claims read, for each queue, kept by the process.
//!
//! The index entries of claimed and deleted jobs stay while any old snapshot can see them: a report, a
//! backup, a standby's feedback. A claim from the head of the index would read them all. So each process
//! remembers for each queue up to where no job waits, and begins there.
//!
//! A job comes to wait behind the bounds in two ways. If it is due in the past, the function that
//! stores it increments the queue's `rewinds`. If its transaction commits more than [`LAG`] after
//! storing it, only a *sweep* finds it, a claim without bounds. Sweeps take at most a fiftieth of the
//! time. Once they are slow, they lease nothing and run beside the claims, which only begin further
//! back if the sweep has found something.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dq_core::QueueName;

/// Bounds stay this far behind the present, in milliseconds, for transactions that are not committed
/// yet.
pub(crate) const LAG: i64 = 500;

const MIN_SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest time between sweeps, in durations of the last one.
const SWEEP_SHARE: u32 = 50;

/// A sweep that takes this long would delay the jobs of a claim.
const SLOW_SWEEP: Duration = Duration::from_millis(5);

/// A queue's bounds; see `claim.sql`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueBounds {
    pub(crate) waiting: (i64, i64),
    pub(crate) expired: i64,
    pub(crate) expiry: i64,
    /// `None` for a sweep.
    pub(crate) rewinds: Option<i64>,
}

impl QueueBounds {
    /// For a new process: the server never has negative `rewinds`, so it begins at the queue's floor.
    pub(crate) const NEW: Self =
        Self { waiting: (i64::MIN, 0), expired: i64::MIN, expiry: i64::MIN, rewinds: Some(-1) };

    const SWEEP: Self = Self { rewinds: None, ..Self::NEW };
}

#[derive(Debug, Default)]
pub(crate) struct Bounds {
    pub(crate) queues: HashMap<QueueName, QueueBounds>,
    /// When the last sweep ended, and how long it took.
    pub(crate) last_sweep: Option<(Instant, Duration)>,
}

impl Bounds {
    /// Returns whether a claim should sweep.
    pub(crate) fn claim_sweeps(&self) -> bool {
        self.is_sweep_due() && self.last_sweep.is_none_or(|(_, took)| took < SLOW_SWEEP)
    }

    /// Returns whether to sweep beside the claims.
    pub(crate) fn needs_slow_sweep(&self) -> bool {
        self.is_sweep_due() && self.last_sweep.is_some_and(|(_, took)| took >= SLOW_SWEEP)
    }

    fn is_sweep_due(&self) -> bool {
        self.last_sweep.is_none_or(|(ended, took)| {
            ended.elapsed() >= MIN_SWEEP_INTERVAL.max(took * SWEEP_SHARE)
        })
    }

    pub(crate) fn of(&self, queue: &QueueName, sweeps: bool) -> QueueBounds {
        if sweeps {
            return QueueBounds::SWEEP;
        }
        self.queues.get(queue).copied().unwrap_or(QueueBounds::NEW)
    }
}
