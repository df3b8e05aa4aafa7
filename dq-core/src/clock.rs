//! Time, injected: the machine's clock, or one that a test turns by hand.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::model::Timestamp;
use crate::sync::lock;

/// Where the framework takes the time from.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;

    /// Time that has passed since some moment of this clock's own choice: never goes back, whatever
    /// is done to the time of day. Leases are measured by it.
    fn elapsed(&self) -> Duration;

    /// Ends when this clock has reached `until`; at once if it has already.
    ///
    /// Cancellation safe.
    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()>;

    /// Ends when `delay` has passed on this clock.
    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.now() + delay)
    }
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

/// What [`SystemClock::elapsed`] counts from.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Clock for SystemClock {
    fn elapsed(&self) -> Duration {
        BEGINNING.elapsed()
    }

    fn now(&self) -> Timestamp {
        // Truncation, not rounding up: a clock that runs ahead by a fraction would fire early.
        let since_epoch =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
    }

    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()> {
        // Tokio's timer has millisecond slots and never fires early; the wall clock is read with
        // its fraction so that the slot is hit and not the one after.
        let since_epoch =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let target = Duration::from_millis(until.as_millis().max(0).unsigned_abs());
        Box::pin(tokio::time::sleep(target.saturating_sub(since_epoch)))
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(delay))
    }
}

/// A clock that stands still until it is turned.
#[derive(Debug)]
pub struct VirtualClock {
    state: Mutex<VirtualState>,
}

#[derive(Debug)]
struct VirtualState {
    now: Timestamp,
    elapsed: Duration,
    sleepers: BTreeMap<(Timestamp, u64), oneshot::Sender<()>>,
    next_sleeper: u64,
}

impl VirtualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        let state = VirtualState {
            now,
            elapsed: Duration::ZERO,
            sleepers: BTreeMap::new(),
            next_sleeper: 0,
        };
        Self { state: Mutex::new(state) }
    }

    /// Turns the clock forward and wakes who slept until then.
    pub fn advance(&self, by: Duration) {
        // One lock for both, or two who turn it at once could turn it back.
        let state = self.lock();
        let to = state.now + by;
        Self::turn(state, to);
    }

    /// Sets the clock, backwards too, and wakes who slept until then. Setting it backwards is as if
    /// the time of day had been corrected: `elapsed` stays.
    pub fn set(&self, to: Timestamp) {
        Self::turn(self.lock(), to);
    }

    fn turn(mut state: MutexGuard<'_, VirtualState>, to: Timestamp) {
        let passed = to.since(state.now);
        state.elapsed += passed;
        state.now = to;
        let still_asleep = state.sleepers.split_off(&(to + Duration::from_millis(1), 0));
        let woken = std::mem::replace(&mut state.sleepers, still_asleep);
        drop(state);
        for sleeper in woken.into_values() {
            // A sleeper that was dropped has nobody to tell.
            let _ = sleeper.send(());
        }
    }

    /// The earliest time anybody sleeps until.
    #[must_use]
    pub fn next_sleeper(&self) -> Option<Timestamp> {
        let mut state = self.lock();
        state.sleepers.retain(|_, sleeper| !sleeper.is_closed());
        state.sleepers.keys().next().map(|(until, _)| *until)
    }

    fn lock(&self) -> MutexGuard<'_, VirtualState> {
        lock(&self.state)
    }
}

impl Default for VirtualClock {
    /// A clock that shows 2024-01-01T00:00:00Z.
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
        let number = state.next_sleeper;
        state.next_sleeper += 1;
        state.sleepers.insert((until, number), sleeper);
        Box::pin(async move {
            // The sender is only dropped unsent with the clock itself; time then stands still.
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
    async fn sleepers_wake_when_their_time_has_come_and_not_before() {
        let clock = VirtualClock::new(Timestamp::from_millis(0));
        let mut sleep = clock.sleep(Duration::from_millis(10));
        clock.advance(Duration::from_millis(9));
        assert!(futures_util::poll!(&mut sleep).is_pending());
        assert_eq!(clock.next_sleeper(), Some(Timestamp::from_millis(10)));
        clock.advance(Duration::from_millis(1));
        sleep.await;
        assert_eq!(clock.next_sleeper(), None);
    }
}
