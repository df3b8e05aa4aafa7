//! Methods for backends built on a machine, beyond the calls of the contract.

use std::mem;

use super::affinity::Affinity;
use super::placement::{JobPlacement, Stored};
use super::state_machine::{Machine, MachineHint};
use crate::backend::{Lease, Want};
use crate::model::{DeadReason, HistoryLimits, Job, JobId, NewJob, QueueName, Timestamp};

impl<R: Stored> Machine<R> {
    /// Makes leases end only by [`settle`](Self::settle) and [`end_lease`](Self::end_lease), for
    /// replicas that only log entries may change.
    ///
    /// By default they also expire by the time given to [most calls](Self::expire_leases), which
    /// must come from one clock.
    pub fn with_explicit_lease_ends(mut self) -> Self {
        self.table.explicit_lease_ends = true;
        self
    }

    /// Ends a lease as lost, whatever its time: the job is due again, with one more loss.
    ///
    /// Returns `false` and changes nothing if the lease is no longer held.
    pub fn end_lease(&mut self, lease: &Lease) -> bool {
        let Some(slot) = self.table.find_leased(lease) else { return false };
        self.table.lose_lease(slot);
        let record = &self.table.records[slot];
        let (queue, due) = (record.queue, record.job.due);
        self.hint(queue, due);
        true
    }

    /// Removes and returns the wake-up hints of the calls so far.
    ///
    /// A hint names a queue where a job may be due earlier than before, and the time to claim.
    pub fn take_hints(&mut self) -> Vec<MachineHint> {
        mem::take(&mut self.hints)
    }

    /// Expires the leases due to end by `now`.
    ///
    /// All calls of the contract except `forecast`, `announce` and `runners` do this first, even
    /// reads, unless the machine is made
    /// [`with_explicit_lease_ends`](Self::with_explicit_lease_ends).
    pub fn expire_leases(&mut self, now: Timestamp) {
        self.table.expire_leases(now);
    }

    /// Returns the [`next_due`](crate::backend::Claimed::next_due) of a
    /// [`claim_preferring`](Self::claim_preferring) for zero jobs. Does not expire leases.
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
            let room = self.table.queues[queue].room(now);
            let next = next.map(Timestamp::from_millis);
            let next = next.and_then(|next| room.opens_at(next, now)).map(Timestamp::as_millis);
            let lease_end = self.table.first_lease_end(queue);
            earliest = [earliest, next, lease_end].into_iter().flatten().min();
        }
        earliest.map(Timestamp::from_millis)
    }

    /// Returns whether jobs are due or claimable ahead, but all are reserved for other claimers.
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

    /// Returns the history limits.
    pub fn history_limits(&self) -> &HistoryLimits {
        &self.history_limits
    }

    /// Changes the history limits, and forgets ended jobs beyond them.
    pub fn set_history_limits(&mut self, limits: HistoryLimits, now: Timestamp) {
        self.history.truncate(&limits, now);
        self.history_limits = limits;
    }

    /// Stores a job that is dead from the start, such as one from an unreadable message. Returns
    /// `false` if a job with its id exists.
    pub fn insert_dead(
        &mut self,
        new: NewJob,
        stored: R,
        reason: DeadReason,
        now: Timestamp,
    ) -> bool {
        self.table.expire_leases(now);
        if self.table.find_id(new.id).is_some() {
            return false;
        }
        let due = new.due.resolve(now);
        self.table.create(new, stored, due, JobPlacement::Dead(Box::new(reason), now), now);
        true
    }

    /// Returns whether the queue has a limit, so that claims must say how many jobs can start.
    pub fn is_limited(&self, queue: &QueueName) -> bool {
        self.table.find_queue(queue).is_some_and(|queue| self.table.queues[queue].is_limited())
    }

    /// Finds a job by id, in any queue and state. Does not expire leases.
    pub fn peek(&self, id: JobId) -> Option<&Job> {
        self.table.find_id(id).map(|slot| &self.table.records[slot].job)
    }

    /// Returns a queue's waiting jobs due after `after` and by `until` with their stored data,
    /// earliest first; none while the queue is paused. Does not expire leases.
    pub fn waiting(
        &mut self,
        queue: &QueueName,
        after: Timestamp,
        until: Timestamp,
    ) -> impl Iterator<Item = (&Job, &R)> {
        let queue = self.find_active_queue(queue);
        let (records, queues) = (&self.table.records, &mut self.table.queues);
        let waiting = queue.map(|queue| queues[queue].waiting.after((after.as_millis(), u64::MAX)));
        let due = waiting.into_iter().flatten().take_while(move |it| it.at <= until.as_millis());
        due.map(|entry| &records[entry.slot]).map(|record| (&record.job, &record.stored))
    }

    /// Returns whether the queue is paused. Does not expire leases.
    pub fn is_paused(&self, queue: &QueueName) -> bool {
        self.table.find_queue(queue).is_some_and(|queue| self.table.queues[queue].paused)
    }

    /// Returns whether the job waits for its due time or a claim. Does not expire leases.
    pub fn is_waiting(&self, id: JobId) -> bool {
        matches!(self.placement(id), Some(JobPlacement::Waiting))
    }

    /// Returns whether the job waits for room in its group. Does not expire leases.
    pub fn is_parked(&self, id: JobId) -> bool {
        self.table.find_id(id).is_some_and(|slot| self.table.is_parked(slot))
    }

    /// Returns whether the job is leased. Does not expire leases.
    pub fn is_leased(&self, id: JobId) -> bool {
        matches!(self.placement(id), Some(JobPlacement::Leased { .. }))
    }

    fn placement(&self, id: JobId) -> Option<&JobPlacement> {
        self.table.find_id(id).map(|slot| &self.table.records[slot].placement)
    }

    /// Returns a job's stored data, in any queue and state.
    pub fn stored(&self, id: JobId) -> Option<&R> {
        self.table.find_id(id).map(|slot| &self.table.records[slot].stored)
    }

    /// Replaces a job's stored data, in any queue and state.
    pub fn set_stored(&mut self, id: JobId, stored: R) {
        if let Some(slot) = self.table.find_id(id) {
            self.table.change(slot, |record| record.stored = stored);
        }
    }

    /// Returns the number of jobs.
    pub fn len(&self) -> usize {
        self.table.records.len()
    }

    /// Returns whether there are no jobs.
    pub fn is_empty(&self) -> bool {
        self.table.records.is_empty()
    }
}
