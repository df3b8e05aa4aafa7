//! The server's time as far as it is known here without asking.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dq_core::{Clock, Timestamp};

/// What answers said of the server's time. Jobs are stamped with it by who stores them, which spares
/// the server the work for each.
///
/// Each answer says how far the two clocks are apart at most and at least; the estimate is moved when
/// an answer proves it wrong, and to the end that does not run ahead. What is wrong about a stamp all
/// the same, as in a cluster whose nodes have clocks of their own, the script mends if it is ahead or
/// more than a second behind: see `restamp` in `scripts/prelude.lua`.
#[derive(Debug)]
pub(crate) struct ServerClock {
    clock: Arc<dyn Clock>,
    /// By how many microseconds the server's time is ahead of the own clock's `elapsed`. Not in
    /// milliseconds: rounded twice, it would be ahead of itself.
    ahead: Mutex<Option<i64>>,
}

impl ServerClock {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, ahead: Mutex::new(None) }
    }

    /// The moment before a call, for [`Self::hear`].
    pub(crate) fn moment(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Takes over what an answer says that has just come to a call that was `sent` then.
    pub(crate) fn hear(&self, sent: Duration, now: Timestamp) {
        let least = now.as_millis() * 1000 - micros(self.clock.elapsed());
        let most = (now.as_millis() + 1) * 1000 - micros(sent);
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if ahead.is_none_or(|known| known < least || known > most) {
            *ahead = Some(least);
        }
    }

    /// The server's time, in milliseconds; that of the epoch as long as nothing is known.
    pub(crate) fn reckon(&self) -> i64 {
        let ahead = *self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn an_answer_moves_the_estimate_that_it_proves_wrong() {
        let own = Arc::new(VirtualClock::new(Timestamp::EPOCH));
        let server = ServerClock::new(Arc::clone(&own) as Arc<dyn Clock>);
        let answered = |after: u64, now| {
            let sent = server.moment();
            own.advance(Duration::from_millis(after));
            server.hear(sent, Timestamp::from_millis(now));
        };
        assert_eq!(server.reckon(), 0);
        answered(0, 50_000);
        own.advance(Duration::from_millis(2));
        assert_eq!(server.reckon(), 50_002);
        answered(600, 50_010);
        assert_eq!(server.reckon(), 50_602, "an answer that took long proves nothing");
        answered(0, 50_610);
        assert_eq!(server.reckon(), 50_610, "the quicker answer is the better one");
        answered(0, 50_590);
        assert_eq!(server.reckon(), 50_590, "the server's clock was set back");
    }
}
