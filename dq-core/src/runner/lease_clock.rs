//! The clock by which a runner measures how long it holds leases.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::clock::Clock;
use crate::sync::lock;

/// In milliseconds. A smaller change of the clocks' difference is no jump: the clocks are read at
/// slightly different moments, and the time of day is truncated.
const TOLERANCE: u64 = 100;

/// Elapsed time plus all forward jumps of the time of day.
///
/// On Linux, elapsed time stands still during suspend, and stores that use the time of day expire
/// leases when it is set forward. Backward jumps change nothing: this clock never goes back.
#[derive(Debug)]
pub(super) struct LeaseClock {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Time of day minus elapsed time in milliseconds.
    difference: i64,
    /// Forward jumps until the last [`LeaseClock::tick`].
    jumped: Duration,
    /// Forward jumps since then.
    jumped_since: Duration,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseTime {
    pub(super) now: Duration,
    /// `now` without the jumps since the last [`LeaseClock::tick`].
    pub(super) without_jump: Duration,
}

impl LeaseClock {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let (_, difference) = read(&*clock);
        let state = State { difference, jumped: Duration::ZERO, jumped_since: Duration::ZERO };
        Self { clock, state: Mutex::new(state) }
    }

    pub(super) fn now(&self) -> Duration {
        self.read(&mut self.lock()).now
    }

    /// Reads the clock. Later ticks count the jumps found now as elapsed time.
    pub(super) fn tick(&self) -> LeaseTime {
        let mut state = self.lock();
        let time = self.read(&mut state);
        let jumped = std::mem::take(&mut state.jumped_since);
        state.jumped += jumped;
        time
    }

    fn read(&self, state: &mut State) -> LeaseTime {
        let (elapsed, difference) = read(&*self.clock);
        let change = difference.saturating_sub(state.difference);
        if change.unsigned_abs() >= TOLERANCE {
            state.jumped_since += Duration::from_millis(change.max(0).unsigned_abs());
            state.difference = difference;
        }
        let without_jump = elapsed + state.jumped;
        LeaseTime { now: without_jump + state.jumped_since, without_jump }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn read(clock: &dyn Clock) -> (Duration, i64) {
    let (now, elapsed) = (clock.now(), clock.elapsed());
    let millis = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
    (elapsed, now.as_millis().saturating_sub(millis))
}
