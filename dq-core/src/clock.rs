//! Clocks: the system clock, and a virtual clock that tests advance.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::model::Timestamp;
use crate::sync::lock;

/// A source of time. Due times, leases and the timers of the runner come from one; the timeouts of
/// connections and of the HTTP server do not, since what they wait for does not follow a virtual
/// clock.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The current time of day.
    fn now(&self) -> Timestamp;

    /// The time since a fixed but unspecified start. It never goes back, even if the time of day is
    /// set, so leases are measured by it.
    fn elapsed(&self) -> Duration;

    /// Waits until this clock reaches `until`; returns at once if it already has.
    ///
    /// The time to wait is computed at the call: a later change of the time of day neither shortens
    /// nor lengthens it. Cancellation safe.
    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()>;

    /// Waits until `delay` has passed on this clock. Cancellation safe.
    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.now() + delay)
    }
}

/// The operating system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

/// The start from which [`SystemClock::elapsed`] is measured.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Clock for SystemClock {
    fn elapsed(&self) -> Duration {
        START.elapsed()
    }

    fn now(&self) -> Timestamp {
        // Truncated, not rounded up: a clock ahead by a fraction would make jobs fire early.
        let since_epoch =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
    }

    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()> {
        // The current time is not truncated here as in `now`, which would lengthen the sleep by up
        // to a millisecond. Tokio's timer never fires early.
        let since_epoch =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let target = Duration::from_millis(until.as_millis().max(0).unsigned_abs());
        Box::pin(tokio::time::sleep(target.saturating_sub(since_epoch)))
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(delay))
    }
}

/// A clock that only moves when a test advances or sets it.
#[derive(Debug)]
pub struct VirtualClock {
    state: Mutex<VirtualState>,
}

#[derive(Debug)]
struct VirtualState {
    now: Timestamp,
    elapsed: Duration,
    /// Sleeping futures by the elapsed time at which they wake, and a sequence number, which makes
    /// the key unique.
    sleepers: BTreeMap<(Duration, u64), oneshot::Sender<()>>,
    next_seq: u64,
}

impl VirtualClock {
    /// Creates a clock that shows `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        let state =
            VirtualState { now, elapsed: Duration::ZERO, sleepers: BTreeMap::new(), next_seq: 0 };
        Self { state: Mutex::new(state) }
    }

    /// Advances the clock and wakes the sleepers whose time has come.
    pub fn advance(&self, by: Duration) {
        // Reading and setting under one lock: otherwise concurrent calls could set the clock back.
        let state = self.lock();
        let to = state.now + by;
        Self::set_locked(state, to);
    }

    /// Sets the clock, forward or back, and wakes the sleepers whose time has come.
    ///
    /// Setting it forward lets time pass, as [`advance`](Self::advance) does. Setting it back only
    /// changes the time of day, as [`jump`](Self::jump) does.
    pub fn set(&self, to: Timestamp) {
        Self::set_locked(self.lock(), to);
    }

    /// Sets the time of day, forward or back, while no time passes: `elapsed` does not change, and
    /// no sleeper wakes.
    ///
    /// To a program this is a correction of the clock. On Linux, forward, it is also a suspended
    /// computer, during which `elapsed` and timers stand still.
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

    /// The earliest time at which a sleeper wakes, if any sleeps.
    #[must_use]
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
            // The sender is only dropped unsent if the clock is dropped; then time never advances.
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
