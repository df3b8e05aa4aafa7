//! Clocks: the system clock, and a virtual clock for tests.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::model::Timestamp;
use crate::sync::lock;

/// A source of time for due times, leases and runner timers.
///
/// Connection and HTTP server timeouts do not use it, because their peers do not follow a virtual
/// clock.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Returns the current time of day.
    fn now(&self) -> Timestamp;

    /// Returns the time since a fixed, unspecified start.
    ///
    /// It never goes back when the time of day is set, so leases use it.
    fn elapsed(&self) -> Duration;

    /// Waits until this clock reaches `until`, or returns at once. Cancellation safe.
    ///
    /// A later change to the time of day does not alter the wait.
    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()>;

    /// Waits until `delay` has passed on this clock. Cancellation safe.
    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.now() + delay)
    }
}

/// The operating system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Clock for SystemClock {
    fn elapsed(&self) -> Duration {
        START.elapsed()
    }

    fn now(&self) -> Timestamp {
        // Truncate, because a clock ahead by a fraction would make jobs fire early.
        let since_epoch =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
    }

    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()> {
        // Do not truncate here as in `now`: that lengthens the sleep by up to a millisecond.
        // Tokio's timer never fires early.
        let since_epoch =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let target = Duration::from_millis(until.as_millis().max(0).unsigned_abs());
        Box::pin(tokio::time::sleep(target.saturating_sub(since_epoch)))
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(delay))
    }
}

/// A clock that only moves when a test moves it.
#[derive(Debug)]
pub struct VirtualClock {
    state: Mutex<VirtualState>,
}

#[derive(Debug)]
struct VirtualState {
    now: Timestamp,
    elapsed: Duration,
    /// By wake-up time (as elapsed time), with a sequence number that makes the key unique.
    sleepers: BTreeMap<(Duration, u64), oneshot::Sender<()>>,
    next_seq: u64,
}

impl VirtualClock {
    /// Creates a clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        let state =
            VirtualState { now, elapsed: Duration::ZERO, sleepers: BTreeMap::new(), next_seq: 0 };
        Self { state: Mutex::new(state) }
    }

    /// Advances the clock and wakes due sleepers.
    pub fn advance(&self, by: Duration) {
        // One lock covers reading and setting, so that concurrent calls cannot set the clock back.
        let state = self.lock();
        let to = state.now + by;
        Self::set_locked(state, to);
    }

    /// Sets the clock, forward or back, and wakes due sleepers.
    ///
    /// Forward, time passes as in [`advance`](Self::advance). Back, only the time of day changes,
    /// as in [`jump`](Self::jump).
    pub fn set(&self, to: Timestamp) {
        Self::set_locked(self.lock(), to);
    }

    /// Sets the time of day while no time passes: `elapsed` stays, and no sleeper wakes.
    ///
    /// This simulates a clock correction, or on Linux a suspended computer.
    pub fn jump(&self, to: Timestamp) {
        self.lock().now = to;
    }

    fn set_locked(mut state: MutexGuard<'_, VirtualState>, to: Timestamp) {
        let passed = to.since(state.now);
        state.elapsed += passed;
        state.now = to;
        let next_millisecond = state.elapsed + Duration::from_millis(1);
        let still_asleep = state.sleepers.split_off(&(next_millisecond, 0));
        let woken = std::mem::replace(&mut state.sleepers, still_asleep);
        drop(state);
        for sleeper in woken.into_values() {
            // Sending fails if the sleeping future was dropped.
            let _ = sleeper.send(());
        }
    }

    /// Returns the next wake-up time, if any.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let mut state = self.lock();
        state.sleepers.retain(|_, sleeper| !sleeper.is_closed());
        let (wakes, _) = state.sleepers.keys().next()?;
        Some(state.now + wakes.saturating_sub(state.elapsed))
    }

    fn lock(&self) -> MutexGuard<'_, VirtualState> {
        lock(&self.state)
    }
}

impl Default for VirtualClock {
    /// Creates a clock that shows 2024-01-01T00:00:00Z.
    fn default() -> Self {
        Self::new(Timestamp::from_millis(1_704_067_200_000))
    }
}

impl Clock for VirtualClock {
    fn elapsed(&self) -> Duration {
        self.lock().elapsed
    }

    fn now(&self) -> Timestamp {
        self.lock().now
    }

    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()> {
        let mut state = self.lock();
        if state.now >= until {
            return Box::pin(std::future::ready(()));
        }
        let (sleeper, woken) = oneshot::channel();
        let wakes = state.elapsed + until.since(state.now);
        let seq = state.next_seq;
        state.next_seq += 1;
        state.sleepers.insert((wakes, seq), sleeper);
        Box::pin(async move {
            // The sender is dropped unsent only with the clock; then time never advances.
            if woken.await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleeper_wakes_at_its_time_and_not_before() {
        let clock = VirtualClock::new(Timestamp::from_millis(0));
        let mut sleep = clock.sleep(Duration::from_millis(10));
        clock.advance(Duration::from_millis(9));
        assert!(futures_util::poll!(&mut sleep).is_pending());
        assert_eq!(clock.next_wakeup(), Some(Timestamp::from_millis(10)));
        clock.advance(Duration::from_millis(1));
        sleep.await;
        assert_eq!(clock.next_wakeup(), None);
    }

    #[tokio::test]
    async fn a_change_of_the_time_of_day_neither_lets_time_pass_nor_postpones_a_sleeper() {
        let hour = Duration::from_secs(3_600);
        let start = Timestamp::from_millis(0) + hour;
        let clock = VirtualClock::new(start);
        let mut sleep = clock.sleep(Duration::from_millis(10));
        clock.jump(start + hour);
        assert_eq!((clock.now(), clock.elapsed()), (start + hour, Duration::ZERO));
        clock.jump(start - hour);
        assert!(futures_util::poll!(&mut sleep).is_pending());
        assert_eq!(clock.next_wakeup(), Some(clock.now() + Duration::from_millis(10)));
        clock.advance(Duration::from_millis(10));
        sleep.await;
    }
}
