//! An estimate of the server's time that costs no call.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{Clock, Timestamp};

/// Estimates the server's time. The client writes it into new records as the acceptance time, so
/// that the server need not change each record.
///
/// Each reply with the server's time bounds the difference between the two clocks. An estimate
/// outside the bounds becomes the lower bound, which is never ahead of the server. The schedule
/// script corrects times that are still wrong, for example because cluster nodes have different
/// clocks (`correct_accepted` in `scripts/library/jobs.lua`).
#[derive(Debug)]
pub(crate) struct ServerClock {
    clock: Arc<dyn Clock>,
    /// Microseconds by which the server is ahead of `clock.elapsed()`; `None` before the first
    /// reply. Milliseconds are too coarse: rounding twice could put the estimate ahead of the
    /// server.
    ahead: Mutex<Option<i64>>,
}

impl ServerClock {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, ahead: Mutex::new(None) }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// `now` comes from a reply that has just arrived; `sent_at` is [`Self::elapsed`] before its
    /// call.
    pub(crate) fn observe(&self, sent_at: Duration, now: Timestamp) {
        let lower = now.as_millis() * 1000 - micros(self.clock.elapsed());
        let upper = (now.as_millis() + 1) * 1000 - micros(sent_at);
        let mut ahead = lock(&self.ahead);
        if ahead.is_none_or(|ahead| ahead < lower || ahead > upper) {
            *ahead = Some(lower);
        }
    }

    /// The server's time in milliseconds; 0 before the first reply.
    pub(crate) fn estimate(&self) -> i64 {
        let ahead = *lock(&self.ahead);
        ahead.map_or(0, |ahead| (ahead + micros(self.clock.elapsed())).div_euclid(1000))
    }
}

fn micros(elapsed: Duration) -> i64 {
    i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use dq_core::VirtualClock;

    use super::*;

    #[test]
    fn a_reply_that_proves_the_estimate_wrong_moves_it() {
        let local = Arc::new(VirtualClock::new(Timestamp::EPOCH));
        let server = ServerClock::new(Arc::clone(&local) as Arc<dyn Clock>);
        let reply = |after: u64, now| {
            let sent_at = server.elapsed();
            local.advance(Duration::from_millis(after));
            server.observe(sent_at, Timestamp::from_millis(now));
        };
        assert_eq!(server.estimate(), 0);
        reply(0, 50_000);
        local.advance(Duration::from_millis(2));
        assert_eq!(server.estimate(), 50_002);
        reply(600, 50_010);
        assert_eq!(server.estimate(), 50_602, "a slow reply proves nothing");
        reply(0, 50_610);
        assert_eq!(server.estimate(), 50_610, "the faster reply is more exact");
        reply(0, 50_590);
        assert_eq!(server.estimate(), 50_590, "the server's clock was set back");
    }
}
