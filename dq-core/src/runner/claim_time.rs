//! How long the store takes to answer a claim, as a cause of late jobs.

use std::sync::Mutex;
use std::time::Duration;

use crate::sync::lock;

/// A claim that takes longer is an outage. It leaves a backlog that takes several claims.
const OUTAGE: Duration = Duration::from_secs(1);

/// One store's recent claims. All times are by [`Clock::elapsed`](crate::Clock::elapsed).
#[derive(Debug, Default)]
pub(super) struct ClaimTime(Mutex<RecentClaims>);

#[derive(Debug, Default)]
struct RecentClaims {
    sent_at: Option<Duration>,
    /// How long the last two claims took, oldest first. Two, because a sweep first claims zero jobs
    /// to learn the next due time.
    last_two: [Option<Duration>; 2],
    /// The outage that still explains late jobs.
    outage: Option<Outage>,
}

#[derive(Debug, Clone, Copy)]
struct Outage {
    began: Duration,
    ended: Duration,
}

impl ClaimTime {
    /// Records that a claim is sent. A failed claim may be repeated: the first one counts.
    pub(super) fn begin(&self, now: Duration) {
        lock(&self.0).sent_at.get_or_insert(now);
    }

    pub(super) fn end(&self, now: Duration) {
        let mut claims = lock(&self.0);
        let Some(sent_at) = claims.sent_at.take() else { return };
        let took = now.saturating_sub(sent_at);
        claims.last_two = [claims.last_two[1], Some(took)];
        if took > OUTAGE {
            claims.add_outage(Outage { began: sent_at, ended: now });
        }
    }

    /// Forgets the unanswered claim, which is not repeated.
    pub(super) fn give_up(&self) {
        lock(&self.0).sent_at = None;
    }

    /// Returns the longest of the last two claims, with repetitions, and the unanswered one so far.
    pub(super) fn longest(&self, now: Duration) -> Option<Duration> {
        let claims = lock(&self.0);
        let unanswered = claims.sent_at.map(|sent_at| now.saturating_sub(sent_at));
        claims.last_two.into_iter().max().flatten().max(unanswered)
    }

    /// Returns how long a job due at `due` waited during the outage.
    pub(super) fn waited_in_outage(&self, due: Duration) -> Duration {
        let waited = |outage: Outage| outage.ended.saturating_sub(outage.began.max(due));
        lock(&self.0).outage.map_or(Duration::ZERO, waited)
    }
}

impl RecentClaims {
    fn add_outage(&mut self, new: Outage) {
        let Some(outage) = &mut self.outage else {
            self.outage = Some(new);
            return;
        };
        let gap = new.began.saturating_sub(outage.ended);
        if gap <= OUTAGE {
            // The same outage continues: a store may be slow right after it is back.
            outage.ended = new.ended;
        } else if gap >= outage.ended - outage.began {
            *outage = new;
        }
        // Otherwise the first outage's backlog may still be the cause: it may take as long as the
        // outage.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn claim(time: &ClaimTime, began: u64, ended: u64) {
        time.begin(secs(began));
        time.end(secs(ended));
    }

    #[test]
    fn the_longest_of_two_claims_counts_even_before_its_answer() {
        let time = ClaimTime::default();
        assert_eq!(time.longest(secs(1)), None);
        time.begin(secs(1));
        assert_eq!(time.longest(secs(3)), Some(secs(2)));
        time.begin(secs(3));
        time.end(secs(4));
        assert_eq!(time.longest(secs(9)), Some(secs(3)), "with the failed call");
        time.begin(secs(9));
        time.give_up();
        claim(&time, 17, 18);
        assert_eq!(time.longest(secs(18)), Some(secs(3)));
        claim(&time, 18, 19);
        assert_eq!(time.longest(secs(19)), Some(secs(1)));
    }

    #[test]
    fn a_job_waits_for_a_store_that_was_away_and_then_slow() {
        let time = ClaimTime::default();
        for (began, ended) in [(10, 50), (50, 52), (53, 55), (56, 57), (70, 73)] {
            claim(&time, began, ended);
        }
        for (due, waited) in [(5, 45), (20, 35), (54, 1), (60, 0)] {
            assert_eq!(time.waited_in_outage(secs(due)), secs(waited));
        }
        // A much later outage replaces the first.
        claim(&time, 110, 112);
        assert_eq!(time.waited_in_outage(secs(20)), secs(2));
    }
}
