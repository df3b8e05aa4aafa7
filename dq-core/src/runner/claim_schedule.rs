//! When to claim next, and the clock skew between store and runner.

use std::time::Duration;

use crate::model::Timestamp;

/// Doubles with each further claim that returns no job although one is due.
const MIN_WITHHELD_DELAY: Duration = Duration::from_millis(1);
/// Logged once. Shorter delays are normal: another runner may claim the job at the same moment.
const LOGGED_WITHHELD_DELAY: Duration = Duration::from_millis(128);

/// Maximum time between two claims of internal queues (see `slots`) while the total is scarce.
const INTERNAL_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time from an internal claim to one triggered only by a hint. Hints name no queue: while
/// the total is scarce, every application job could trigger one.
const INTERNAL_HINT_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct ClaimSchedule {
    /// Store clock minus runner clock in milliseconds, measured by the last claim.
    skew: i64,
    /// By the store's clock.
    next_due: Option<Timestamp>,
    /// How long before the due time the store accepts a claim.
    claim_ahead: Duration,
    /// The last claim returned no job, and no hint has arrived since. It may have been too early,
    /// so the next one does not use `claim_ahead`, which would loop until the due time.
    pub(super) last_claim_empty: bool,
    /// Set while the store withholds a due job.
    withheld_delay: Option<Duration>,
    /// A queue or the total had no free slot for the last claim, so more jobs may be due.
    pub(super) saturated: bool,
    /// By the store's clock, from the last internal claim or a later hint.
    internal_due: Option<Timestamp>,
    /// By the store's clock.
    internal_claimed: Option<Timestamp>,
    /// The internal queues have no free slot, or there are none: a freed slot triggers their next
    /// claim.
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

    pub(super) fn expects_jobs(&self, now: Timestamp) -> bool {
        self.saturated || self.next_claim().is_some_and(|at| at <= now)
    }

    /// By the runner's clock.
    pub(super) fn next_claim(&self) -> Option<Timestamp> {
        let internal_due = self.internal_due.filter(|_| !self.internal_full);
        self.next_due.into_iter().chain(internal_due).min().map(|due| self.claim_at(due))
    }

    /// By the runner's clock; `due` is by the store's.
    fn claim_at(&self, due: Timestamp) -> Timestamp {
        let ahead = if self.last_claim_empty { Duration::ZERO } else { self.claim_ahead };
        self.to_local(due) - ahead
    }

    /// Whether to claim the internal queues, if one claim cannot cover all queues.
    pub(super) fn expects_internal_jobs(&self, now: Timestamp) -> bool {
        let is_due = self.internal_due.is_some_and(|due| self.claim_at(due) <= now);
        // In either direction: the store's clock may have been set back.
        let now = self.to_store(now);
        let is_long_ago =
            |claimed: Timestamp| now.since(claimed).max(claimed.since(now)) >= INTERNAL_INTERVAL;
        is_due || self.internal_claimed.is_none_or(is_long_ago)
    }

    /// Both times are by the store's clock.
    pub(super) fn internal_queues_claimed(&mut self, next_due: Option<Timestamp>, now: Timestamp) {
        self.internal_due = next_due;
        self.internal_claimed = Some(now);
    }

    /// `due` is by the store's clock.
    pub(super) fn set_next_due(&mut self, due: Option<Timestamp>) {
        self.next_due = due;
    }

    /// Delays the next claim because the store withholds a due job. The delay grows with each such
    /// claim, up to `max`. `now` is by the store's clock.
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

    pub(super) fn no_job_withheld(&mut self) {
        self.withheld_delay = None;
    }

    /// `due` is by the store's clock.
    pub(super) fn apply_hint(&mut self, due: Timestamp) {
        self.next_due = self.next_due.into_iter().chain([due]).min();
        let earliest = self.internal_claimed.map(|claimed| claimed + INTERNAL_HINT_INTERVAL);
        let internal_due = earliest.map_or(due, |earliest| due.max(earliest));
        self.internal_due = self.internal_due.into_iter().chain([internal_due]).min();
        // The hint may be about a job that the empty claim did not see. This costs at most one
        // early claim.
        self.last_claim_empty = false;
    }

    /// `sent` and `answered` are by the runner's clock, `processed` by the store's.
    pub(super) fn measure_skew(
        &mut self,
        sent: Timestamp,
        processed: Timestamp,
        answered: Timestamp,
    ) {
        // A difference within the call's duration is not skew.
        self.skew = if (sent..=answered).contains(&processed) {
            0
        } else {
            let took = answered.as_millis().saturating_sub(sent.as_millis());
            let middle = sent.as_millis().saturating_add(took / 2);
            processed.as_millis().saturating_sub(middle)
        };
    }

    pub(super) const fn skew(&self) -> i64 {
        self.skew
    }

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
