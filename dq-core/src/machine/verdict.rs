//! How a job enters the store, and how a lease ends.

use super::index::Slot;
use super::store::{Place, Store};
use crate::backend::{Lease, Scheduled, Settled, Settlement, Verdict};
use crate::model::{NewJob, Timestamp};

impl Store {
    /// Stores a job, or says which one has its id or key.
    pub(super) fn schedule(&mut self, new: NewJob, now: Timestamp) -> Scheduled {
        if let Some(present) = self.by_id(new.id) {
            return self.conflict(present);
        }
        let due = new.due.resolve(now);
        let rival = new.key.as_ref().and_then(|key| self.by_key(&new.queue, key));
        let Some(rival) = rival else {
            return Scheduled::Created(self.create(new, due, now));
        };
        match self.conflict(rival) {
            Scheduled::Kept(present) if new.on_conflict.replaces(present.due, due) => {
                let queue = self.records[rival].queue;
                self.remove(rival);
                self.queues[queue].totals.replaced += 1;
                Scheduled::Replaced(self.create(new, due, now))
            }
            answer => answer,
        }
    }

    /// Where the job of a lease lies, if the lease is still held.
    pub(super) fn held(&self, lease: &Lease) -> Option<Slot> {
        let slot = self.by_id(lease.job)?;
        match self.records[slot].place {
            Place::Leased { token, .. } if token == lease.token => Some(slot),
            _ => None,
        }
    }

    /// The answer, and when the job is due again if it is.
    pub(super) fn settle(
        &mut self,
        settlement: &Settlement,
        now: Timestamp,
    ) -> (Settled, Option<Timestamp>) {
        let Some(slot) = self.held(&settlement.lease) else {
            return (Settled::Stale, None);
        };
        let queue = self.records[slot].queue;
        if let Verdict::Done | Verdict::Skip = settlement.verdict {
            let totals = &mut self.queues[queue].totals;
            match settlement.verdict {
                Verdict::Done => totals.done += 1,
                _ => totals.skipped += 1,
            }
            self.remove(slot);
            return (Settled::Accepted, None);
        }
        self.unlease(slot);
        let job = &mut self.records[slot].job;
        match &settlement.verdict {
            Verdict::Done | Verdict::Skip => unreachable!("settled above"),
            Verdict::Retry(due) => {
                job.attempts += 1;
                job.losses = 0;
                job.due = due.resolve(now);
            }
            Verdict::Snooze(due) => {
                job.losses = 0;
                job.due = due.resolve(now);
            }
            Verdict::Release { started } => job.deliveries -= u32::from(!started),
            Verdict::Dead { reason, failed } => {
                job.attempts += u32::from(*failed);
                self.bury(slot, reason.clone(), now);
                return (Settled::Accepted, None);
            }
        }
        let due = job.due;
        self.wait(slot);
        (Settled::Accepted, Some(due))
    }

    /// Moves the end of a lease.
    pub(super) fn extend(&mut self, slot: Slot, until: Timestamp) {
        let Place::Leased { token, .. } = self.records[slot].place else {
            return;
        };
        self.unlease(slot);
        self.relet(slot, token, until);
    }
}
