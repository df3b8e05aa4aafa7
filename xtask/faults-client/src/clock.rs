//! A clock that is wrong and jumps.

use std::time::Duration;

use dq::{Clock, SystemClock, Timestamp};
use futures_util::future::BoxFuture;

/// How long the clock stays at one error.
const PERIOD: Duration = Duration::from_secs(2);
const HOUR: Duration = Duration::from_secs(3600);

/// The machine's clock, an hour ahead, an hour behind and right by turns. Only the time of day is
/// wrong: time that has passed is measured right, as by a system whose time of day is set.
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

    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(until.since(self.now())))
    }
}
