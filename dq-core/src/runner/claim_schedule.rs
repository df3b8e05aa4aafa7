//! When to claim next, and the difference between the clocks of store and runner.

use std::time::Duration;

use crate::model::Timestamp;

/// When a claim loop has to call the store again.
#[derive(Debug)]
pub(super) struct ClaimSchedule {
    /// The store's clock minus the runner's, in milliseconds, as measured by the last claim.
    skew: i64,
    /// When the next job is due, by the store's clock.
    next_due: Option<Timestamp>,
    /// How long before the due time the store accepts a claim.
    claim_ahead: Duration,
    /// Whether the last claim returned no job. It may have been too early, so the next one does not
    /// use `claim_ahead`.
    pub(super) last_claim_empty: bool,
    /// Whether the last claim was limited by free slots, so that more jobs may be due.
    pub(super) saturated: bool,
}

impl ClaimSchedule {
    pub(super) fn new(claim_ahead: Duration) -> Self {
        Self { skew: 0, next_due: None, claim_ahead, last_claim_empty: false, saturated: false }
    }

    /// Whether a claim is likely to return jobs.
    pub(super) fn expects_jobs(&self, now: Timestamp) -> bool {
        self.saturated || self.next_claim().is_some_and(|at| at <= now)
    }

    /// When to claim the next due job, by the runner's clock.
    pub(super) fn next_claim(&self) -> Option<Timestamp> {
        let ahead = if self.last_claim_empty { Duration::ZERO } else { self.claim_ahead };
        self.next_due.map(|due| self.to_local(due) - ahead)
    }

    /// Sets the next due time, by the store's clock; `None` if it is not known or no job is stored.
    pub(super) fn set_next_due(&mut self, due: Option<Timestamp>) {
        self.next_due = due;
    }

    /// Applies a hint that a job is due at `due`, by the store's clock.
    pub(super) fn apply_hint(&mut self, due: Timestamp) {
        self.next_due = self.next_due.into_iter().chain([due]).min();
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

    /// Converts a time of the runner's clock to the store's.
    pub(super) fn to_store(&self, local: Timestamp) -> Timestamp {
        Timestamp::from_millis(local.as_millis().saturating_add(self.skew))
    }

    fn to_local(&self, store: Timestamp) -> Timestamp {
        Timestamp::from_millis(store.as_millis().saturating_sub(self.skew))
    }
}
