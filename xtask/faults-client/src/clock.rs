//! A clock that is wrong and jumps.

use std::time::Duration;

use dq::{Clock, SystemClock, Timestamp};
use futures_util::future::BoxFuture;

/// How long one error lasts. Must equal `CLOCK_ERROR` in `xtask/src/faults/scene.rs`.
const PERIOD: Duration = Duration::from_secs(2);
const HOUR: Duration = Duration::from_secs(3600);

/// The machine's clock, in turns an hour ahead, an hour behind and right. Only the time of day is
/// wrong; elapsed time is right, as when a system's clock is set.
#[derive(Debug)]
pub(crate) struct JumpingClock;

impl Clock for JumpingClock {
    fn now(&self) -> Timestamp {
        let now = SystemClock.now();
        match SystemClock.elapsed().as_secs() / PERIOD.as_secs() % 3 {
            0 => now + HOUR,
            1 => now - HOUR,
            _ => now,
        }
    }

    fn elapsed(&self) -> Duration {
        SystemClock.elapsed()
    }

    /// Sleeps by elapsed time: a jump between two clock readings makes an absolute sleep last two
    /// hours.
    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        SystemClock.sleep(delay)
    }

    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(until.since(self.now())))
    }
}
