//! Decides when a claim loop claims next, and measures the clock skew between store and runner.
//!
//! *Store time* is by the store's clock, *local time* by the runner's. A queue's *own* slots are
//! used by no other queue; see [`slots`](super::slots).

use std::time::Duration;

use crate::model::Timestamp;

/// Delay after a claim that returns no job although one is due. It doubles with each further one.
const MIN_WITHHELD_DELAY: Duration = Duration::from_millis(1);
/// This delay is logged once. Shorter delays are normal: another runner may claim the job at the
/// same moment.
const LOGGED_WITHHELD_DELAY: Duration = Duration::from_millis(128);

/// Maximum time between two claims for own slots while the shared slots are scarce.
const OWN_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time from a claim for own slots to one triggered only by a hint, unless a reserve has a
/// free slot. Hints name no queue: while the shared slots are scarce, every application job could
/// trigger one.
pub(super) const HINT_INTERVAL: Duration = Duration::from_millis(20);

/// When one claim loop claims next.
#[derive(Debug)]
pub(super) struct ClaimTimer {
    /// Store time minus local time in milliseconds, measured by the last claim.
    pub(super) skew: i64,
    /// Store time.
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
    /// Store time, from the last claim for own slots or a later hint.
    own_due: Option<Timestamp>,
    /// Store time of the last claim for own slots.
    own_claimed: Option<Timestamp>,
    /// No queue has a free slot of its own: a freed slot triggers the next claim for them.
    pub(super) own_full: bool,
    /// A reserve has a free slot, where a job starts at once.
    pub(super) reserve_free: bool,
}

impl ClaimTimer {
    pub(super) const fn new(claim_ahead: Duration) -> Self {
        Self {
            skew: 0,
            next_due: None,
            claim_ahead,
            last_claim_empty: false,
            withheld_delay: None,
            saturated: false,
            own_due: None,
            own_claimed: None,
            own_full: false,
            reserve_free: false,
        }
    }

    /// Returns whether a claim may return jobs; `now` is local time.
    pub(super) fn expects_jobs(&self, now: Timestamp) -> bool {
        self.saturated || self.next_claim().is_some_and(|next| next <= now)
    }

    /// Returns the local time of the next claim.
    pub(super) fn next_claim(&self) -> Option<Timestamp> {
        let own_due = self.own_due.filter(|_| !self.own_full);
        let due = earliest(self.next_due, own_due)?;
        Some(self.claim_for(due))
    }

    /// Returns the local time of the claim for a job that is due at this store time.
    fn claim_for(&self, store_due: Timestamp) -> Timestamp {
        let ahead = if self.last_claim_empty { Duration::ZERO } else { self.claim_ahead };
        self.to_local(store_due) - ahead
    }

    /// Returns whether to claim for own slots, if one claim cannot cover all slots. `now` is local
    /// time.
    pub(super) fn expects_own_jobs(&self, now: Timestamp) -> bool {
        if self.own_due.is_some_and(|due| self.claim_for(due) <= now) {
            return true;
        }
        let Some(claimed) = self.own_claimed else { return true };
        let now = self.to_store(now);
        // The difference counts in either direction: the store's clock may have been set back.
        now.since(claimed).max(claimed.since(now)) >= OWN_INTERVAL
    }

    pub(super) fn own_slots_claimed(&mut self, next_due: Option<Timestamp>, store_now: Timestamp) {
        self.own_due = next_due;
        self.own_claimed = Some(store_now);
    }

    /// Records that the jobs for own slots are not known.
    pub(super) const fn own_slots_unclaimed(&mut self) {
        self.own_claimed = None;
    }

    /// Records an answered claim that was sent and answered at these local times.
    pub(super) fn claim_answered(
        &mut self,
        sent: Timestamp,
        answered: Timestamp,
        store_now: Timestamp,
        next_due: Option<Timestamp>,
    ) {
        self.skew = skew(sent, answered, store_now);
        self.next_due = next_due;
    }

    /// Records that only a freed slot allows the next claim.
    pub(super) const fn no_slot_is_free(&mut self) {
        self.saturated = true;
        self.next_due = None;
    }

    /// Delays the next claim, by up to `max`, because the store withholds a due job.
    pub(super) fn job_withheld(&mut self, store_now: Timestamp, max: Duration) {
        let delay = self.withheld_delay.map_or(MIN_WITHHELD_DELAY, |delay| delay * 2).min(max);
        let logged = LOGGED_WITHHELD_DELAY.min(max);
        if delay >= logged && self.withheld_delay.is_none_or(|before| before < logged) {
            tracing::warn!(
                "the store reports a due job but no claim returns it; claiming less often"
            );
        }
        self.withheld_delay = Some(delay);
        self.next_due = Some(store_now + delay);
    }

    pub(super) const fn no_job_withheld(&mut self) {
        self.withheld_delay = None;
    }

    pub(super) fn apply_hint(&mut self, store_due: Timestamp) {
        self.next_due = earliest(self.next_due, Some(store_due));
        let own_claimed = self.own_claimed.filter(|_| !self.reserve_free);
        let not_before = own_claimed.map(|claimed| claimed + HINT_INTERVAL);
        self.own_due = earliest(self.own_due, Some(store_due).max(not_before));
        // The hint may be about a job that the empty claim did not see. This costs at most one
        // early claim.
        self.last_claim_empty = false;
    }

    pub(super) const fn to_store(&self, local: Timestamp) -> Timestamp {
        Timestamp::from_millis(local.as_millis().saturating_add(self.skew))
    }

    const fn to_local(&self, store: Timestamp) -> Timestamp {
        Timestamp::from_millis(store.as_millis().saturating_sub(self.skew))
    }
}

fn earliest(first: Option<Timestamp>, second: Option<Timestamp>) -> Option<Timestamp> {
    first.into_iter().chain(second).min()
}

/// Compares the store's time with the middle of the call. A difference within the call's duration
/// is no skew.
fn skew(sent: Timestamp, answered: Timestamp, store_now: Timestamp) -> i64 {
    if (sent..=answered).contains(&store_now) {
        return 0;
    }
    let took = answered.as_millis().saturating_sub(sent.as_millis());
    let middle = sent.as_millis().saturating_add(took / 2);
    store_now.as_millis().saturating_sub(middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_does_not_hold_up_the_own_slots() {
        let mut timer = ClaimTimer::new(Duration::ZERO);
        let hour = Timestamp::from_millis(3_600_000);
        timer.own_slots_claimed(None, hour);
        assert!(!timer.expects_own_jobs(hour + Duration::from_millis(100)));
        assert!(timer.expects_own_jobs(Timestamp::EPOCH));
    }
}
