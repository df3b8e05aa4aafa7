//! What backends that are built on a machine need besides the calls of the contract.

use std::mem;

use bytes::Bytes;

use super::affinity::Affinity;
use super::placement::JobPlacement;
use super::state_machine::Machine;
use crate::backend::{Lease, Want};
use crate::model::{DeadReason, HistoryLimits, Job, JobId, NewJob, QueueName, Timestamp};

/// Access for backends that are built on a machine.
impl Machine {
    /// Makes leases end only by [`settle`](Self::settle) and [`end_lease`](Self::end_lease). By
    /// default they also end by the time that is given to [most calls](Self::expire_leases), which
    /// must then be the time of one clock.
    #[must_use]
    pub fn with_explicit_lease_ends(mut self) -> Self {
        self.table.explicit_lease_ends = true;
        self
    }

    /// Ends a lease that was lost: its job is due again, with one more loss. Returns `false`, without
    /// a change, if the lease is no longer held.
    pub fn end_lease(&mut self, lease: &Lease) -> bool {
        let Some(slot) = self.table.find_leased(lease) else { return false };
        self.table.lose_lease(slot);
        let record = &self.table.records[slot];
        let (queue, due) = (record.queue, record.job.due);
        self.hint(queue, due);
        true
    }

    /// Removes and returns the wake-up hints that the calls so far have produced: queues in which a
    /// job may be due earlier than before, each with the time at which to claim.
    pub fn take_hints(&mut self) -> Vec<(QueueName, Timestamp)> {
        mem::take(&mut self.hints)
    }

    /// Expires the leases that have ended by `now`.
    ///
    /// The calls of the contract do this first, even those that only read, except for `forecast`,
    /// `announce` and `runners`. So a read may change the machine. Replicas of a log, which only
    /// entries may change, are made [`with_explicit_lease_ends`](Self::with_explicit_lease_ends), by
    /// which this does nothing.
    pub fn expire_leases(&mut self, now: Timestamp) {
        self.table.expire_leases(now);
    }

    /// The [`next_due`](crate::backend::Claimed::next_due) that a
    /// [`claim_preferring`](Self::claim_preferring) for zero jobs would return. Does not expire
    /// leases; the job of a lease that has ended counts as due.
    pub fn next_due<P: Fn(&Job) -> bool>(
        &mut self,
        wants: &[Want],
        affinity: &Affinity<P>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut earliest = None;
        for want in wants {
            let Some(queue) = self.find_active_queue(&want.queue) else { continue };
            let (_, next) = affinity.select(&mut self.table, queue, 0, now);
            let lease_end = self.table.first_lease_end(queue);
            earliest = [earliest, next, lease_end].into_iter().flatten().min();
        }
        earliest.map(Timestamp::from_millis)
    }

    /// Whether a [`claim_preferring`](Self::claim_preferring) would return no job although at least
    /// one is due or could be claimed ahead of its due time: all such jobs are reserved for other
    /// claimers.
    pub fn all_due_reserved<P: Fn(&Job) -> bool>(
        &mut self,
        wants: &[Want],
        affinity: &Affinity<P>,
        now: Timestamp,
    ) -> bool {
        let soon = (now + affinity.claim_ahead).as_millis();
        let mut is_any_due = false;
        for want in wants {
            let Some(queue) = self.find_active_queue(&want.queue) else { continue };
            let lease_end = self.table.first_lease_end(queue);
            if lease_end.is_some_and(|end| end <= now.as_millis()) {
                return false;
            }
            let (selected, _next) = affinity.select(&mut self.table, queue, 1, now);
            if !selected.is_empty() {
                return false;
            }
            let first = self.table.queues[queue].waiting.first();
            is_any_due |= first.is_some_and(|first| first.at <= soon);
        }
        is_any_due
    }

    /// The limits of the history.
    #[must_use]
    pub fn history_limits(&self) -> &HistoryLimits {
        &self.history_limits
    }

    /// Changes the limits of the history, and forgets the ended jobs beyond them.
    pub fn set_history_limits(&mut self, limits: HistoryLimits, now: Timestamp) {
        self.history.truncate(&limits, now);
        self.history_limits = limits;
    }

    /// Stores a job that is dead from the start, such as one made from a message that could not be
    /// read. Returns `false`, without a change, if a job with its id exists.
    pub fn insert_dead(&mut self, new: NewJob, reason: DeadReason, now: Timestamp) -> bool {
        self.table.expire_leases(now);
        if self.table.find_id(new.id).is_some() {
            return false;
        }
        let due = new.due.resolve(now);
        self.table.create(new, due, JobPlacement::Dead(Box::new(reason), now), now);
        true
    }

    /// The job with this id, in any queue and state. Does not expire leases.
    #[must_use]
    pub fn peek(&self, id: JobId) -> Option<&Job> {
        self.table.find_id(id).map(|slot| &self.table.records[slot].job)
    }

    /// The jobs of a queue that wait and are due after `after` and by `until`, earliest first. None if
    /// the queue is paused. Does not expire leases.
    pub fn waiting(
        &mut self,
        queue: &QueueName,
        after: Timestamp,
        until: Timestamp,
    ) -> impl Iterator<Item = &Job> {
        let queue = self.find_active_queue(queue);
        let (records, queues) = (&self.table.records, &mut self.table.queues);
        let waiting = queue.map(|queue| queues[queue].waiting.after(after.as_millis(), u64::MAX));
        let due = waiting.into_iter().flatten().take_while(move |it| it.at <= until.as_millis());
        due.map(|entry| &records[entry.slot].job)
    }

    /// Whether the queue is paused. Does not expire leases.
    #[must_use]
    pub fn is_paused(&self, queue: &QueueName) -> bool {
        self.table.find_queue(queue).is_some_and(|queue| self.table.queues[queue].paused)
    }

    /// Whether the job waits for its due time or for a claim. Does not expire leases.
    #[must_use]
    pub fn is_waiting(&self, id: JobId) -> bool {
        matches!(self.placement(id), Some(JobPlacement::Waiting))
    }

    /// Whether the job is leased. Does not expire leases.
    #[must_use]
    pub fn is_leased(&self, id: JobId) -> bool {
        matches!(self.placement(id), Some(JobPlacement::Leased { .. }))
    }

    fn placement(&self, id: JobId) -> Option<&JobPlacement> {
        self.table.find_id(id).map(|slot| &self.table.records[slot].placement)
    }

    /// Replaces the payload of a job in any state, for backends that store a reference instead of
    /// the payload.
    pub fn set_payload(&mut self, id: JobId, payload: Bytes) {
        if let Some(slot) = self.table.find_id(id) {
            self.table.change(slot, |record| record.job.payload = payload);
        }
    }

    /// The number of jobs in the machine.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.records.len()
    }

    /// Whether the machine has no jobs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.records.is_empty()
    }
}
