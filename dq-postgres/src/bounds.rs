//! Bounds from which claims read, for each queue, kept by the process.
//!
//! The index entries of claimed and deleted jobs stay while any old snapshot can see them: a report, a
//! backup, a standby's feedback. A claim from the head of the index would read them all. So each process
//! remembers for each queue up to where no job waits, and begins there.
//!
//! A job comes to wait behind the bounds in two ways. If it is due in the past, the function that
//! stores it adds a row to `rewind`, and the next claim begins there. If its transaction commits more
//! than [`LAG`] after storing it, only a *sweep* finds it, a claim without bounds. Sweeps take at most a
//! fiftieth of the time. Once they are slow, as the first one of a process may be, they lease nothing and
//! run beside the claims, which only begin further back if the sweep has found something.

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

/// A queue's bounds; see `claim.sql`. Null means that the process has not claimed yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueBounds {
    pub(crate) waiting: Option<(i64, i64)>,
    pub(crate) expired: Option<i64>,
    pub(crate) expiry: i64,
    pub(crate) last_rewind: Option<i64>,
    pub(crate) rewinds: i64,
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
        changes: 0,
    };

    /// Bounds of a sweep, which begins at the start.
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
    /// When the last sweep ended, and how long it took.
    pub(crate) last_sweep: (Instant, Duration),
}

impl Default for Bounds {
    fn default() -> Self {
        Self { queues: HashMap::new(), last_sweep: (Instant::now(), SLOW_SWEEP) }
    }
}

impl Bounds {
    /// Returns whether a claim should sweep.
    pub(crate) fn claim_sweeps(&self) -> bool {
        self.is_sweep_due() && self.last_sweep.1 < SLOW_SWEEP
    }

    /// Returns whether to sweep beside the claims.
    pub(crate) fn needs_slow_sweep(&self) -> bool {
        self.is_sweep_due() && self.last_sweep.1 >= SLOW_SWEEP
    }

    fn is_sweep_due(&self) -> bool {
        let (ended, took) = self.last_sweep;
        ended.elapsed() >= MIN_SWEEP_INTERVAL.max(took * SWEEP_SHARE)
    }

    pub(crate) fn of(&self, queue: &QueueName, sweeps: bool) -> QueueBounds {
        let known = self.queues.get(queue).copied().unwrap_or(QueueBounds::NEW);
        if sweeps { known.without_bounds() } else { known }
    }
}
