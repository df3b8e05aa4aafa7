//! The server's time as far as it is known here without asking.

use std::sync::{Arc, Mutex, PoisonError};

use dq_core::{Clock, Timestamp};

/// An estimate that is lower by more than this many microseconds is not of a slow answer, but of a clock set back.
const SLOW: i64 = 100_000;

/// What answers said of the server's time. Jobs are stamped with it by who stores them, which spares
/// the server the work for each. It is never ahead, as an answer is a little old when it is here;
/// and what a script finds wrong about it, it mends: see `restamp` in `scripts/prelude.lua`.
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

    /// Takes over what an answer says that has just come.
    pub(crate) fn hear(&self, now: Timestamp) {
        let heard = now.as_millis() * 1000 - self.elapsed();
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        // The quickest answer is the best one.
        if ahead.is_none_or(|known| heard > known || heard < known - SLOW) {
            *ahead = Some(heard);
        }
    }

    /// The server's time, in milliseconds; that of the epoch as long as nothing is known.
    pub(crate) fn reckon(&self) -> i64 {
        let ahead = *self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.map_or(0, |ahead| (ahead + self.elapsed()).div_euclid(1000))
    }

    fn elapsed(&self) -> i64 {
        i64::try_from(self.clock.elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dq_core::VirtualClock;

    use super::*;

    #[test]
    fn the_quickest_answer_counts_until_the_server_goes_back() {
        let own = Arc::new(VirtualClock::new(Timestamp::EPOCH));
        let server = ServerClock::new(Arc::clone(&own) as Arc<dyn Clock>);
        let at = Timestamp::from_millis;
        assert_eq!(server.reckon(), 0);
        server.hear(at(50_000));
        own.advance(Duration::from_millis(2));
        assert_eq!(server.reckon(), 50_002);
        server.hear(at(49_990));
        assert_eq!(server.reckon(), 50_002, "an answer that took long");
        server.hear(at(50_010));
        assert_eq!(server.reckon(), 50_010);
        server.hear(at(40_000));
        assert_eq!(server.reckon(), 40_000, "set back");
    }
}
