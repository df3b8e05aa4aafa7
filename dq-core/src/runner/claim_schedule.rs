//! When to claim next, and the difference between the clocks of store and runner.

use std::time::Duration;

use crate::model::Timestamp;

/// Delay after a claim that returned no job although one is due; doubled after each further one.
const MIN_WITHHELD_DELAY: Duration = Duration::from_millis(1);
/// When the delay reaches this, a warning is logged, once. Shorter delays are normal, such as when
/// another runner claims the job at the same moment.
const LOGGED_WITHHELD_DELAY: Duration = Duration::from_millis(128);

/// Maximum time between two claims of the internal queues (see `slots`) while the loop claims and
/// the total of slots is scarce.
const INTERNAL_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time from a claim of the internal queues to one that only a hint causes. Hints do not name
/// their queue, so while the total of slots is scarce, each job of the application could cause one.
const INTERNAL_HINT_INTERVAL: Duration = Duration::from_millis(20);

/// When a claim loop has to call the store again.
#[derive(Debug)]
pub(super) struct ClaimSchedule {
    /// The store's clock minus the runner's, in milliseconds, as measured by the last claim.
    skew: i64,
    /// When the next job is due, by the store's clock.
    next_due: Option<Timestamp>,
    /// How long before the due time the store accepts a claim.
    claim_ahead: Duration,
    /// Whether the last claim returned no job, and no hint has arrived since. The claim may have
    /// been too early, so the next one does not use `claim_ahead`, which would repeat it at once, in
    /// a busy loop until the due time.
    pub(super) last_claim_empty: bool,
    /// Delay before the next claim, if the last ones returned no job although one is due.
    withheld_delay: Option<Duration>,
    /// Whether a queue or the total had no free slot for the last claim, so that more jobs may be due.
    pub(super) saturated: bool,
    /// When the next job of an internal queue is due, by the store's clock, as of the last claim of
    /// these queues and the hints since.
    internal_due: Option<Timestamp>,
    /// When the internal queues were last claimed, by the store's clock.
    internal_claimed: Option<Timestamp>,
    /// Whether the internal queues have no free slots, or there are none. A freed slot causes their
    /// next claim, not a due time.
    pub(super) internal_full: bool,
}

impl ClaimSchedule {
    pub(super) fn new(claim_ahead: Duration) -> Self {
        Self {
            skew: 0,
            next_due: None,
            claim_ahead,
            last_claim_empty: false,
            withheld_delay: None,
            saturated: false,
            internal_due: None,
            internal_claimed: None,
            internal_full: false,
        }
    }

    /// Whether a claim is likely to return jobs.
    pub(super) fn expects_jobs(&self, now: Timestamp) -> bool {
        self.saturated || self.next_claim().is_some_and(|at| at <= now)
    }

    /// When to claim the next due job, by the runner's clock.
    pub(super) fn next_claim(&self) -> Option<Timestamp> {
        let internal_due = self.internal_due.filter(|_| !self.internal_full);
        self.next_due.into_iter().chain(internal_due).min().map(|due| self.claim_at(due))
    }

    /// When to claim a job that is due then, by the runner's clock.
    fn claim_at(&self, due: Timestamp) -> Timestamp {
        let ahead = if self.last_claim_empty { Duration::ZERO } else { self.claim_ahead };
        self.to_local(due) - ahead
    }

    /// Whether the internal queues have to be claimed, if one claim cannot be for all queues.
    pub(super) fn expects_internal_jobs(&self, now: Timestamp) -> bool {
        let is_due = self.internal_due.is_some_and(|due| self.claim_at(due) <= now);
        // Either way: the store's clock may have been set back since.
        let now = self.to_store(now);
        let is_long_ago =
            |claimed: Timestamp| now.since(claimed).max(claimed.since(now)) >= INTERNAL_INTERVAL;
        is_due || self.internal_claimed.is_none_or(is_long_ago)
    }

    /// Records a claim of the internal queues: when their next job is due, by the store's clock.
    pub(super) fn internal_queues_claimed(&mut self, next_due: Option<Timestamp>, now: Timestamp) {
        self.internal_due = next_due;
        self.internal_claimed = Some(now);
    }

    /// Sets the next due time, by the store's clock; `None` if it is not known or no job is stored.
    pub(super) fn set_next_due(&mut self, due: Option<Timestamp>) {
        self.next_due = due;
    }

    /// Delays the next claim, since the store reports a due job at `now`, by its own clock, but
    /// withholds it. The delay grows with each such claim, up to `max`.
    pub(super) fn job_withheld(&mut self, now: Timestamp, max: Duration) {
        let delay = self.withheld_delay.map_or(MIN_WITHHELD_DELAY, |delay| delay * 2).min(max);
        let logged = LOGGED_WITHHELD_DELAY.min(max);
        if delay >= logged && self.withheld_delay.is_none_or(|before| before < logged) {
            tracing::warn!(
                "the store reports a due job but no claim returns it; claiming less often"
            );
        }
        self.withheld_delay = Some(delay);
        self.next_due = Some(now + delay);
    }

    /// Records that the store returned jobs or has none that is due.
    pub(super) fn no_job_withheld(&mut self) {
        self.withheld_delay = None;
    }

    /// Applies a hint that a job is due at `due`, by the store's clock.
    pub(super) fn apply_hint(&mut self, due: Timestamp) {
        self.next_due = self.next_due.into_iter().chain([due]).min();
        let earliest = self.internal_claimed.map(|claimed| claimed + INTERNAL_HINT_INTERVAL);
        let internal_due = earliest.map_or(due, |earliest| due.max(earliest));
        self.internal_due = self.internal_due.into_iter().chain([internal_due]).min();
        // The hint may be about a job that the empty claim did not see. That costs at most one more
        // early claim for each hint.
        self.last_claim_empty = false;
    }

    /// Measures the skew by a call that was sent and answered at these times by the runner's clock,
    /// and was processed at `processed` by the store's clock.
    pub(super) fn measure_skew(
        &mut self,
        sent: Timestamp,
        processed: Timestamp,
        answered: Timestamp,
    ) {
        // A difference within the duration of the call is not a skew.
        self.skew = if (sent..=answered).contains(&processed) {
            0
        } else {
            let took = answered.as_millis().saturating_sub(sent.as_millis());
            let middle = sent.as_millis().saturating_add(took / 2);
            processed.as_millis().saturating_sub(middle)
        };
    }

    /// The store's clock minus the runner's, in milliseconds.
    pub(super) const fn skew(&self) -> i64 {
        self.skew
    }

    /// Converts a time of the runner's clock to the store's.
    pub(super) fn to_store(&self, local: Timestamp) -> Timestamp {
        Timestamp::from_millis(local.as_millis().saturating_add(self.skew))
    }

    fn to_local(&self, store: Timestamp) -> Timestamp {
        Timestamp::from_millis(store.as_millis().saturating_sub(self.skew))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_does_not_hold_up_the_internal_queues() {
        let mut schedule = ClaimSchedule::new(Duration::ZERO);
        let hour = Timestamp::from_millis(3_600_000);
        schedule.internal_queues_claimed(None, hour);
        assert!(!schedule.expects_internal_jobs(hour + Duration::from_millis(100)));
        assert!(schedule.expects_internal_jobs(Timestamp::EPOCH));
    }
}
