//! How long the store takes to answer a claim.

use std::sync::Mutex;
use std::time::Duration;

use crate::sync::lock;

/// The duration of the last two claims of a store. Two, because a sweep first sends a claim of no jobs,
/// which only asks when the next one is due, and then a real one. All times are by
/// [`Clock::elapsed`](crate::Clock::elapsed).
#[derive(Debug, Default)]
pub(super) struct ClaimTime(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Since when a claim is not answered.
    since: Option<Duration>,
    /// The earlier one first.
    last: [Option<Duration>; 2],
    /// The period in which claims took longer than [`LONG`] that still explains lateness: since when, and
    /// until when. A later one replaces it after as much time as it lasted, or if it is longer.
    long: Option<(Duration, Duration)>,
}

/// A store that does not answer for longer leaves a backlog of jobs, which takes several claims.
const LONG: Duration = Duration::from_secs(1);

impl ClaimTime {
    /// A claim is sent; one that failed may be repeated.
    pub(super) fn begin(&self, now: Duration) {
        lock(&self.0).since.get_or_insert(now);
    }

    /// The store has answered the claim.
    pub(super) fn end(&self, now: Duration) {
        let mut state = lock(&self.0);
        let since = state.since.take();
        let took = since.map(|since| now.saturating_sub(since));
        state.last = [state.last[1], took];
        if let Some(since) = since.filter(|_| took > Some(LONG)) {
            state.long = Some(match state.long {
                // Still the same outage: a store that is back may be slow for a while.
                Some((first, until)) if since.saturating_sub(until) <= LONG => (first, now),
                // As long as this one was, its backlog may take, too.
                Some((first, until)) if since - until < until - first => (first, until),
                _ => (since, now),
            });
        }
    }

    /// The claim is not repeated until a slot is free.
    pub(super) fn give_up(&self) {
        lock(&self.0).since = None;
    }

    /// How long the longer of the last two claims took with its repetitions, or for how long one has
    /// not been answered if that is longer.
    pub(super) fn get(&self, now: Duration) -> Option<Duration> {
        let state = lock(&self.0);
        let outstanding = state.since.map(|since| now.saturating_sub(since));
        state.last.into_iter().max().flatten().max(outstanding)
    }

    /// For how long a job that was due then, and starts now, has waited within the period of long claims.
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
        // It fails, and is repeated.
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
        // Long after, another one takes its place.
        claim.begin(secs(110));
        claim.end(secs(112));
        assert_eq!(claim.waited(secs(20)), secs(2));
    }
}
