//! How old a received request may be: a process that was suspended, or whose tasks were, finds what
//! arrived meanwhile as if it had arrived now.

use std::time::Duration;

use dq_core::{Clock, Timestamp};

/// How often a process looks whether it was suspended, at least.
const MAX_INTERVAL: Duration = Duration::from_millis(500);

/// For how long after a stall what is received may have arrived during the stall: the client library
/// reads the socket in a thread of its own, and the consumer may be empty until then.
const GRACE: Duration = Duration::from_secs(1);

/// A moment by both clocks: elapsed time stands still while the computer is suspended, and the time
/// of day may be set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    elapsed: Duration,
    now: Timestamp,
}

impl Moment {
    pub(super) fn of(clock: &dyn Clock) -> Self {
        Self { elapsed: clock.elapsed(), now: clock.now() }
    }

    /// The longer of the times since an earlier moment.
    fn since(&self, earlier: &Self) -> Duration {
        let elapsed = self.elapsed.saturating_sub(earlier.elapsed);
        elapsed.max(self.now.since(earlier.now))
    }
}

/// Observes when this process was not suspended.
#[derive(Debug)]
pub(super) struct StallWatch {
    interval: Duration,
    last_seen: Moment,
    /// The last moment before the last stall, and the first one after it.
    stall: Option<(Moment, Moment)>,
}

impl StallWatch {
    /// Begins to observe. Requests of callers with this response timeout are received.
    pub(super) fn new(response_timeout: Duration, now: Moment) -> Self {
        let interval = (response_timeout / 10).min(MAX_INTERVAL);
        Self { interval, last_seen: now, stall: None }
    }

    /// How often to look at the clocks. More than twice this between two looks is a stall.
    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// Looks at the clocks. Returns for how long what is received now may have been waiting because
    /// of a stall, at most.
    pub(super) fn max_age(&mut self, now: Moment) -> Duration {
        let last_seen = std::mem::replace(&mut self.last_seen, now);
        let recent = self.stall.filter(|(_, ended)| last_seen.since(ended) <= GRACE);
        let recent = recent.map(|(began, _)| began);
        if now.since(&last_seen) > self.interval * 2 {
            let began = recent.unwrap_or(last_seen);
            self.stall = Some((began, now));
            return now.since(&began);
        }
        recent.map_or(Duration::ZERO, |began| now.since(&began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(elapsed: u64, now: i64) -> Moment {
        let elapsed = Duration::from_millis(elapsed);
        Moment { elapsed, now: Timestamp::from_millis(now) }
    }

    #[test]
    fn what_is_received_after_a_stall_is_as_old_as_the_stall() {
        let mut watch = StallWatch::new(Duration::from_secs(5), at(0, 0));
        let mut age = |elapsed, now| watch.max_age(at(elapsed, now)).as_millis();
        assert_eq!(age(500, 500), 0);
        assert_eq!(age(1_500, 1_500), 0, "a busy machine");
        // Suspended for three seconds. The timer may end before the first delivery is seen.
        assert_eq!(age(4_500, 4_500), 3_000);
        assert_eq!(age(4_501, 4_501), 3_001);
        assert_eq!(age(5_001, 5_001), 3_501);
        // Again, before all of it was received.
        assert_eq!(age(7_001, 7_001), 5_501);
        assert_eq!(age(7_501, 7_501), 6_001);
        assert_eq!(age(8_002, 8_002), 6_502);
        assert_eq!(age(8_102, 8_102), 0);
        // The computer is suspended, or the clock is set.
        assert_eq!(age(8_103, 68_103), 60_001);
        assert_eq!(age(9_003, 69_003), 60_901);
        assert_eq!(age(9_203, 69_203), 61_101);
        assert_eq!(age(9_303, 69_303), 0);
        // Set back.
        assert_eq!(age(9_403, 9_403), 0);
    }

    #[test]
    fn callers_with_a_short_timeout_are_observed_more_often() {
        let mut watch = StallWatch::new(Duration::from_secs(1), at(0, 0));
        assert_eq!(watch.interval(), Duration::from_millis(100));
        assert_eq!(watch.max_age(at(200, 200)), Duration::ZERO);
        assert_eq!(watch.max_age(at(401, 401)), Duration::from_millis(201));
    }
}
