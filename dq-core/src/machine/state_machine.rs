//! The rules of the contract: what each call does to the state.

use std::{iter, mem};

use bytes::Bytes;

use super::affinity::Affinity;
use super::index::Slot;
use super::table::{JobPlacement, JobTable};
use crate::backend::{
    BrowseParams, Cancelled, Claimed, Cursor, LeasedJob, Operation, Page, QueueStats, Receipt,
    Renewal, Renewed, Reschedule, Rescheduled, Scheduled, Settled, Settlement, Verdict, Want,
};
use crate::model::{DeadReason, Due, Job, JobId, JobRef, JobView, NewJob, QueueName, Timestamp};

/// The jobs of a store and the rules of the contract.
///
/// Each call takes the time at which it happens and first expires the leases that have ended by
/// then. That time may go backwards from call to call: an expired lease stays expired.
#[derive(Debug, Default)]
pub struct Machine {
    pub(super) table: JobTable,
    /// Queues in which a job has become due earlier, with its due time; see [`Self::take_hints`].
    hints: Vec<(QueueName, Timestamp)>,
}

/// An [`Operation`] that owns its data, so that it can be read from a log. It does not contain the
/// queue, which is passed separately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnedOperation {
    /// See [`Operation::Replay`].
    Replay {
        /// The ids of the dead jobs; all dead jobs of the queue if `None`.
        jobs: Option<Vec<JobId>>,
        /// The new due time.
        due: Due,
    },
    /// See [`Operation::Remove`].
    Remove {
        /// The ids of the dead jobs; all dead jobs of the queue if `None`.
        jobs: Option<Vec<JobId>>,
    },
    /// See [`Operation::Pause`].
    Pause,
    /// See [`Operation::Resume`].
    Resume,
    /// See [`Operation::Purge`].
    Purge,
}

impl From<Operation<'_>> for OwnedOperation {
    fn from(operation: Operation<'_>) -> Self {
        match operation {
            Operation::Replay { jobs, due, .. } => {
                Self::Replay { jobs: jobs.map(<[JobId]>::to_vec), due }
            }
            Operation::Remove { jobs, .. } => Self::Remove { jobs: jobs.map(<[JobId]>::to_vec) },
            Operation::Pause { .. } => Self::Pause,
            Operation::Resume { .. } => Self::Resume,
            Operation::Purge { .. } => Self::Purge,
        }
    }
}

/// The calls of [`Backend`](crate::Backend), most of them for one item of a batch.
impl Machine {
    /// See [`Backend::schedule`](crate::Backend::schedule).
    pub fn schedule(&mut self, new: NewJob, now: Timestamp) -> Scheduled {
        self.table.expire_leases(now);
        let queue = self.table.ensure_queue(&new.queue);
        let first = self.table.queues[queue].waiting.first();
        let scheduled = self.store_or_keep(new, now);
        if scheduled.is_stored() && first.is_none_or(|first| scheduled.due().as_millis() < first.at)
        {
            self.hint(queue, scheduled.due());
        }
        scheduled
    }

    /// Stores a job, unless another job with its id or key stays.
    fn store_or_keep(&mut self, new: NewJob, now: Timestamp) -> Scheduled {
        if let Some(same_id) = self.table.find_id(new.id) {
            return self.not_stored(same_id);
        }
        let due = new.due.resolve(now);
        let receipt = Receipt { id: new.id, due };
        let same_key = new.key.as_ref().and_then(|key| self.table.find_key(&new.queue, key));
        let Some(same_key) = same_key else {
            self.table.create(new, due, JobPlacement::Waiting, now);
            return Scheduled::Created(receipt);
        };
        match self.not_stored(same_key) {
            Scheduled::Kept(existing) if new.on_conflict.replaces(existing.due, due) => {
                let queue = self.table.records[same_key].queue;
                self.table.remove(same_key);
                self.table.queues[queue].totals.replaced += 1;
                self.table.create(new, due, JobPlacement::Waiting, now);
                Scheduled::Replaced(receipt)
            }
            not_stored => not_stored,
        }
    }

    /// The result for a new job that is not stored because the existing one has its id or key.
    fn not_stored(&self, existing: Slot) -> Scheduled {
        let record = &self.table.records[existing];
        let receipt = Receipt { id: record.job.id, due: record.job.due };
        match record.placement {
            JobPlacement::Leased { .. } => Scheduled::AlreadyRunning(receipt),
            JobPlacement::Waiting | JobPlacement::Dead(..) => Scheduled::Kept(receipt),
        }
    }

    /// See [`Backend::cancel`](crate::Backend::cancel).
    pub fn cancel(&mut self, job: &JobRef, now: Timestamp) -> Cancelled {
        self.table.expire_leases(now);
        let Some(slot) = self.table.find(&job.queue, &job.target) else {
            return Cancelled::NotFound;
        };
        let record = &self.table.records[slot];
        match record.placement {
            JobPlacement::Waiting => {
                let queue = record.queue;
                self.table.remove(slot);
                self.table.queues[queue].totals.cancelled += 1;
                Cancelled::Cancelled
            }
            JobPlacement::Leased { .. } => Cancelled::AlreadyRunning,
            JobPlacement::Dead(..) => Cancelled::NotFound,
        }
    }

    /// See [`Backend::reschedule`](crate::Backend::reschedule).
    pub fn reschedule(&mut self, reschedule: &Reschedule, now: Timestamp) -> Rescheduled {
        self.table.expire_leases(now);
        let JobRef { queue, target } = &reschedule.job;
        let Some(slot) = self.table.find(queue, target) else {
            return Rescheduled::NotFound;
        };
        let record = &self.table.records[slot];
        match record.placement {
            JobPlacement::Waiting => {
                let (id, queue, due) = (record.job.id, record.queue, reschedule.due.resolve(now));
                self.table.set_waiting(slot, due);
                let first = self.table.queues[queue].waiting.first();
                if first.is_some_and(|first| first.slot == slot) {
                    self.hint(queue, due);
                }
                Rescheduled::Moved(Receipt { id, due })
            }
            JobPlacement::Leased { .. } => Rescheduled::AlreadyRunning,
            JobPlacement::Dead(..) => Rescheduled::NotFound,
        }
    }

    /// See [`Backend::claim`](crate::Backend::claim).
    pub fn claim(&mut self, wants: &[Want], limit: usize, now: Timestamp) -> Claimed {
        self.claim_with(wants, limit, now, |table, queue, max| {
            let waiting = &mut table.queues[queue].waiting;
            let due = iter::from_fn(|| waiting.pop(now.as_millis()));
            let taken = due.take(max).map(|entry| entry.slot).collect();
            (taken, waiting.first().map(|entry| entry.at))
        })
    }

    /// As [`claim`](Self::claim), but leaves jobs that other claimers may prefer to them for a
    /// while; see [`Affinity`].
    ///
    /// [`Claimed::next_due`] takes into account that reserved jobs become available later. The
    /// lease of a job that is claimed ahead of its due time starts at its due time;
    /// [`Claimed::now`] is then the latest of these due times.
    pub fn claim_preferring<P: Fn(&Job) -> bool>(
        &mut self,
        wants: &[Want],
        limit: usize,
        affinity: &Affinity<P>,
        now: Timestamp,
    ) -> Claimed {
        self.claim_with(wants, limit, now, |table, queue, max| {
            let (selected, next) = affinity.select(table, queue, max, now);
            for entry in &selected {
                table.queues[queue].waiting.remove(entry.at, entry.seq);
            }
            (selected.into_iter().map(|entry| entry.slot).collect(), next)
        })
    }

    /// Claims the jobs that `take` selects.
    ///
    /// `take(table, queue, max)` removes at most `max` jobs of a queue from its index of waiting
    /// jobs. It returns their slots, and the time from which more can be taken, in Unix
    /// milliseconds; `None` if no other job waits.
    fn claim_with(
        &mut self,
        wants: &[Want],
        limit: usize,
        now: Timestamp,
        mut take: impl FnMut(&mut JobTable, usize, usize) -> (Vec<Slot>, Option<i64>),
    ) -> Claimed {
        self.table.expire_leases(now);
        let mut claimed = Claimed { jobs: Vec::new(), next_due: None, now };
        for want in wants {
            let Some(queue) = self.find_active_queue(&want.queue) else { continue };
            let max = want.max.min(limit - claimed.jobs.len());
            let (taken, next) = take(&mut self.table, queue, max);
            for slot in taken {
                let start = now.max(self.table.records[slot].job.due);
                claimed.now = claimed.now.max(start);
                let leased_until = start + want.lease_for;
                let token = self.table.lease(slot, leased_until);
                let job = self.table.records[slot].job.clone();
                claimed.jobs.push(LeasedJob { job, token, leased_until });
            }
            let lease_end = self.table.queues[queue].first_lease_end();
            let next = [next, lease_end].into_iter().flatten().map(Timestamp::from_millis);
            claimed.next_due = claimed.next_due.into_iter().chain(next).min();
        }
        claimed
    }

    /// See [`Backend::settle`](crate::Backend::settle).
    pub fn settle(&mut self, settlement: &Settlement, now: Timestamp) -> Settled {
        self.table.expire_leases(now);
        let Some(slot) = self.table.find_leased(&settlement.lease) else {
            return Settled::Stale;
        };
        let record = &mut self.table.records[slot];
        let (job, queue) = (&mut record.job, record.queue);
        let due = match &settlement.verdict {
            Verdict::Done => {
                self.table.remove(slot);
                self.table.queues[queue].totals.done += 1;
                return Settled::Accepted;
            }
            Verdict::Skip => {
                self.table.remove(slot);
                self.table.queues[queue].totals.skipped += 1;
                return Settled::Accepted;
            }
            Verdict::Dead { reason, failed } => {
                job.attempts += u32::from(*failed);
                self.table.set_dead(slot, reason.clone(), now);
                return Settled::Accepted;
            }
            Verdict::Retry(due) => {
                job.attempts += 1;
                job.losses = 0;
                due.resolve(now)
            }
            Verdict::Snooze(due) => {
                job.losses = 0;
                due.resolve(now)
            }
            Verdict::Release { started } => {
                job.deliveries -= u32::from(!started);
                job.due
            }
        };
        self.table.set_waiting(slot, due);
        self.hint(queue, due);
        Settled::Accepted
    }

    /// See [`Backend::renew`](crate::Backend::renew).
    pub fn renew(&mut self, renewal: &Renewal, now: Timestamp) -> Renewed {
        self.table.expire_leases(now);
        let Some(slot) = self.table.find_leased(&renewal.lease) else {
            return Renewed::Lost;
        };
        let until = now + renewal.lease_for;
        self.table.set_lease_end(slot, until);
        Renewed::Until(until)
    }

    /// See [`Backend::stats`](crate::Backend::stats).
    pub fn stats(&mut self, queues: &[QueueName], now: Timestamp) -> Vec<QueueStats> {
        self.table.expire_leases(now);
        let table = &mut self.table;
        if queues.is_empty() {
            let mut all: Vec<_> = (0..table.queues.len()).map(|n| table.stats(n, now)).collect();
            all.sort_unstable_by(|a, b| a.queue.cmp(&b.queue));
            return all;
        }
        let stats = |name: &QueueName| match table.find_queue(name) {
            Some(queue) => table.stats(queue, now),
            None => {
                QueueStats { totals: Some(Default::default()), ..QueueStats::empty(name.clone()) }
            }
        };
        queues.iter().map(stats).collect()
    }

    /// See [`Backend::browse`](crate::Backend::browse).
    pub fn browse(&mut self, params: BrowseParams<'_>, now: Timestamp) -> Page {
        self.table.expire_leases(now);
        let table = &mut self.table;
        let Some(queue) = table.find_queue(params.queue) else {
            return Page { jobs: Vec::new(), next: None };
        };
        // One more than asked for shows whether there is a next page.
        let mut entries = table.list(queue, params.state, params.after, now, params.limit + 1);
        let has_more = entries.len() > params.limit;
        entries.truncate(params.limit);
        let next = entries.last().filter(|_| has_more);
        Page {
            jobs: entries.iter().map(|entry| table.view(entry.slot, now)).collect(),
            next: next
                .map(|last| Cursor { at: Timestamp::from_millis(last.at), seq: last.seq.into() }),
        }
    }

    /// See [`Backend::get`](crate::Backend::get).
    pub fn get(&mut self, job: &JobRef, now: Timestamp) -> Option<JobView> {
        self.table.expire_leases(now);
        self.table.find(&job.queue, &job.target).map(|slot| self.table.view(slot, now))
    }

    /// See [`Backend::operate`](crate::Backend::operate). Returns the number of jobs or queues that
    /// changed.
    pub fn operate(
        &mut self,
        queue: &QueueName,
        operation: &OwnedOperation,
        now: Timestamp,
    ) -> u64 {
        self.table.expire_leases(now);
        let table = &mut self.table;
        let queue = match table.find_queue(queue) {
            Some(queue) => queue,
            // A queue can be paused before its first job.
            None if *operation == OwnedOperation::Pause => table.ensure_queue(queue),
            None => return 0,
        };
        let affected = match operation {
            OwnedOperation::Replay { jobs, due } => {
                let due = due.resolve(now);
                let dead = table.find_dead(queue, jobs.as_deref());
                dead.into_iter().filter(|slot| table.replay(*slot, due)).count()
            }
            OwnedOperation::Remove { jobs } => {
                let dead = table.find_dead(queue, jobs.as_deref());
                self.remove_all(queue, &dead)
            }
            OwnedOperation::Pause => {
                usize::from(!mem::replace(&mut table.queues[queue].paused, true))
            }
            OwnedOperation::Resume => {
                usize::from(mem::replace(&mut table.queues[queue].paused, false))
            }
            OwnedOperation::Purge => {
                let mut jobs = table.find_dead(queue, None);
                // After the smallest possible key: all jobs.
                let waiting = table.queues[queue].waiting.after(i64::MIN, 0);
                jobs.extend(waiting.map(|entry| entry.slot));
                self.remove_all(queue, &jobs)
            }
        };
        if let OwnedOperation::Replay { .. } | OwnedOperation::Resume = operation {
            self.hint(queue, now);
        }
        affected as u64
    }

    fn remove_all(&mut self, queue: usize, jobs: &[Slot]) -> usize {
        for job in jobs {
            self.table.remove(*job);
        }
        self.table.queues[queue].totals.removed += jobs.len() as u64;
        jobs.len()
    }

    /// The index of a queue; `None` if the queue does not exist or is paused.
    fn find_active_queue(&self, name: &QueueName) -> Option<usize> {
        self.table.find_queue(name).filter(|queue| !self.table.queues[*queue].paused)
    }

    fn hint(&mut self, queue: usize, due: Timestamp) {
        self.hints.push((self.table.queues[queue].name.clone(), due));
    }
}

/// Access for backends that are built on a machine.
impl Machine {
    /// Removes and returns the wake-up hints that the calls so far have produced: queues in which
    /// jobs have become due earlier, with the due times.
    pub fn take_hints(&mut self) -> Vec<(QueueName, Timestamp)> {
        mem::take(&mut self.hints)
    }

    /// Expires the leases that have ended by `now`.
    ///
    /// Every call does this first, even one that only reads. Replicas of a log must therefore apply
    /// an entry that expires leases before each read; otherwise the read would change only one of
    /// them.
    pub fn expire_leases(&mut self, now: Timestamp) {
        self.table.expire_leases(now);
    }

    /// The [`Claimed::next_due`] that a [`claim_preferring`](Self::claim_preferring) for zero jobs
    /// would return. Does not expire leases; the job of a lease that has ended counts as due.
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
            let lease_end = self.table.queues[queue].first_lease_end();
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
            let lease_end = self.table.queues[queue].first_lease_end();
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
            self.table.records[slot].job.payload = payload;
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
