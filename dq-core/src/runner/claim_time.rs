//! How long the store takes to answer a claim.

use std::sync::Mutex;
use std::time::Duration;

use crate::sync::lock;

/// The last two claims, by [`Clock::elapsed`](crate::Clock::elapsed). Two, because a sweep first
/// claims zero jobs to learn the next due time.
#[derive(Debug, Default)]
pub(super) struct ClaimTime(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When the unanswered claim was sent.
    since: Option<Duration>,
    /// Oldest first.
    last: [Option<Duration>; 2],
    /// The period of [`LONG`] claims that still explains lateness. A later period replaces it if
    /// longer, or if it starts after as much time as this one lasted.
    long: Option<(Duration, Duration)>,
}

/// A longer outage leaves a backlog that takes several claims.
const LONG: Duration = Duration::from_secs(1);

impl ClaimTime {
    /// A failed claim may be repeated.
    pub(super) fn begin(&self, now: Duration) {
        lock(&self.0).since.get_or_insert(now);
    }

    pub(super) fn end(&self, now: Duration) {
        let mut state = lock(&self.0);
        let since = state.since.take();
        let took = since.map(|since| now.saturating_sub(since));
        state.last = [state.last[1], took];
        if let Some(since) = since.filter(|_| took > Some(LONG)) {
            state.long = Some(match state.long {
                // The same outage continues: a store may be slow right after it is back.
                Some((first, until)) if since.saturating_sub(until) <= LONG => (first, now),
                // An outage's backlog may take as long as the outage.
                Some((first, until)) if since - until < until - first => (first, until),
                _ => (since, now),
            });
        }
    }

    pub(super) fn give_up(&self) {
        lock(&self.0).since = None;
    }

    /// The longest of the last two claims, with repetitions, and the unanswered one.
    pub(super) fn get(&self, now: Duration) -> Option<Duration> {
        let state = lock(&self.0);
        let outstanding = state.since.map(|since| now.saturating_sub(since));
        state.last.into_iter().max().flatten().max(outstanding)
    }

    /// How long a job due at `due` waited within the long period.
    pub(super) fn waited(&self, due: Duration) -> Duration {
        let waited = |(since, until): (Duration, Duration)| until.saturating_sub(since.max(due));
        lock(&self.0).long.map_or(Duration::ZERO, waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_takes_until_it_is_answered() {
        let (claim, secs) = (ClaimTime::default(), Duration::from_secs);
        assert_eq!(claim.get(secs(1)), None);
        claim.begin(secs(1));
        assert_eq!(claim.get(secs(3)), Some(secs(2)), "it is not answered yet");
        claim.end(secs(4));
        assert_eq!(claim.get(secs(9)), Some(secs(3)));
        claim.begin(secs(10));
        claim.begin(secs(15));
        assert_eq!(claim.get(secs(12)), Some(secs(3)));
        claim.end(secs(16));
        assert_eq!(claim.get(secs(16)), Some(secs(6)));
        claim.begin(secs(16));
        claim.give_up();
        for (end, longest) in [(17, 6), (18, 1)] {
            claim.begin(secs(end - 1));
            claim.end(secs(end));
            assert_eq!(claim.get(secs(end)), Some(secs(longest)));
        }
    }

    #[test]
    fn a_job_waits_for_a_store_that_was_away_and_then_slow() {
        let (claim, secs) = (ClaimTime::default(), Duration::from_secs);
        assert_eq!(claim.waited(secs(0)), secs(0));
        for (begin, end) in [(10, 50), (50, 52), (53, 55), (56, 57), (70, 73)] {
            claim.begin(secs(begin));
            claim.end(secs(end));
        }
        for (due, waited) in [(5, 45), (20, 35), (54, 1), (60, 0)] {
            assert_eq!(claim.waited(secs(due)), secs(waited));
        }
        // A much later outage replaces the first.
        claim.begin(secs(110));
        claim.end(secs(112));
        assert_eq!(claim.waited(secs(20)), secs(2));
    }
}
