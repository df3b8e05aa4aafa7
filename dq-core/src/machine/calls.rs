//! The calls of the seam, on the machine.

use std::mem;

use super::index::Slot;
use super::near::Nearness;
use super::store::{Place, Store};
use crate::backend::{
    BrowseParams, Cancelled, Claimed, Cursor, LeasedJob, Operation, Page, QueueStats, Receipt,
    Renewal, Renewed, Reschedule, Rescheduled, Scheduled, Settled, Settlement, Want,
};
use crate::model::{DeadReason, Due, Job, JobId, JobRef, JobView, NewJob, QueueName, Timestamp};

/// All jobs of a store, and the rules by which they move.
///
/// Each call is given the time at which it happens. It first gives back the leases that have ended
/// by then, so that a call sees the state as it is at that time. Times that go backwards from call
/// to call do no harm: a lease that was given back stays given back.
#[derive(Debug, Default)]
pub struct Machine {
    pub(super) store: Store,
    pub(super) earlier: Vec<(QueueName, Timestamp)>,
}

/// An operator's intervention with everything that it needs, so that it can be kept and repeated:
/// see [`Operation`] for what each does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operate {
    /// [`Operation::Replay`].
    Replay {
        /// Which dead jobs; all if `None`.
        jobs: Option<Vec<JobId>>,
        /// When they shall be due.
        due: Due,
    },
    /// [`Operation::Remove`].
    Remove {
        /// Which dead jobs; all if `None`.
        jobs: Option<Vec<JobId>>,
    },
    /// [`Operation::Pause`].
    Pause,
    /// [`Operation::Resume`].
    Resume,
    /// [`Operation::Purge`].
    Purge,
}

impl From<Operation<'_>> for Operate {
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

impl Machine {
    /// What became due earlier than all others of its queue since this was asked last: whom to
    /// wake, and for when.
    pub fn take_earlier(&mut self) -> Vec<(QueueName, Timestamp)> {
        mem::take(&mut self.earlier)
    }

    /// Lets time pass: gives back the leases that have ended. Whoever looks at a machine that stands for
    /// one in other processes lets the time pass in all of them, since a look would otherwise change this
    /// one alone.
    pub fn pass(&mut self, now: Timestamp) {
        self.store.reclaim(now);
    }

    /// [`Backend::schedule`](crate::Backend::schedule) of one job.
    pub fn schedule(&mut self, new: NewJob, now: Timestamp) -> Scheduled {
        self.store.reclaim(now);
        let queue = self.store.number(&new.queue);
        let head = self.store.queues[queue].waiting.first();
        let answer = self.store.schedule(new, now);
        if answer.is_stored() && head.is_none_or(|head| answer.due().as_millis() < head.at) {
            self.wake(queue, answer.due());
        }
        answer
    }

    /// [`Backend::cancel`](crate::Backend::cancel) of one job.
    pub fn cancel(&mut self, job: &JobRef, now: Timestamp) -> Cancelled {
        self.store.reclaim(now);
        let Some(slot) = self.store.find(&job.queue, &job.target) else {
            return Cancelled::NotFound;
        };
        let record = &self.store.records[slot];
        match record.place {
            Place::Waiting => {
                let queue = record.queue;
                self.store.remove(slot);
                self.store.queues[queue].totals.cancelled += 1;
                Cancelled::Cancelled
            }
            Place::Leased { .. } => Cancelled::AlreadyRunning,
            Place::Dead(_) => Cancelled::NotFound,
        }
    }

    /// [`Backend::reschedule`](crate::Backend::reschedule) of one job.
    pub fn reschedule(&mut self, wish: &Reschedule, now: Timestamp) -> Rescheduled {
        self.store.reclaim(now);
        let Some(slot) = self.store.find(&wish.job.queue, &wish.job.target) else {
            return Rescheduled::NotFound;
        };
        let record = &self.store.records[slot];
        match record.place {
            Place::Waiting => {
                let (id, queue, due) = (record.job.id, record.queue, wish.due.resolve(now));
                self.store.delay(slot, due);
                let first = self.store.queues[queue].waiting.first();
                if first.is_some_and(|first| first.slot == slot) {
                    self.wake(queue, due);
                }
                Rescheduled::Moved(Receipt { id, due })
            }
            Place::Leased { .. } => Rescheduled::AlreadyRunning,
            Place::Dead(_) => Rescheduled::NotFound,
        }
    }

    /// [`Backend::claim`](crate::Backend::claim): the oldest due jobs of each queue.
    pub fn claim(&mut self, wants: &[Want], limit: usize, now: Timestamp) -> Claimed {
        self.claim_with(wants, limit, now, |store, number, room| {
            let waiting = &mut store.queues[number].waiting;
            let pop = || waiting.pop(now.as_millis()).map(|entry| entry.slot);
            let taken = std::iter::from_fn(pop).take(room).collect();
            (taken, waiting.first().map(|entry| entry.at))
        })
    }

    /// As [`claim`](Self::claim), for claimers that are not all equally near to a job: jobs that are
    /// not [`near`](Nearness::near) are left to others for a while. Until then they do not count as due
    /// in [`Claimed::next_due`]. What is had [`ahead`](Nearness::ahead) of its due time is leased from then
    /// on, and [`Claimed::now`] is that time.
    pub fn claim_near<N: Fn(&Job) -> bool>(
        &mut self,
        wants: &[Want],
        limit: usize,
        nearness: &Nearness<N>,
        now: Timestamp,
    ) -> Claimed {
        self.claim_with(wants, limit, now, |store, number, room| {
            let (chosen, next) = nearness.choose(store, number, room, now);
            for entry in &chosen {
                store.queues[number].waiting.remove(entry.at, entry.seq);
            }
            (chosen.into_iter().map(|entry| entry.slot).collect(), next)
        })
    }

    /// What [`Claimed::next_due`] of such a claim would be that takes nothing, as the state was left
    /// by the last call: leases that have ended since count as due.
    pub fn next_due<N: Fn(&Job) -> bool>(
        &mut self,
        wants: &[Want],
        nearness: &Nearness<N>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut earliest = None;
        for want in wants {
            let number = self.store.known(&want.queue);
            let Some(number) = number.filter(|number| !self.store.queues[*number].paused) else {
                continue;
            };
            let (_, next) = nearness.choose(&mut self.store, number, 0, now);
            let lapse = self.store.queues[number].leased.first().map(|entry| entry.at);
            earliest = [earliest, next, lapse].into_iter().flatten().min();
        }
        earliest.map(Timestamp::from_millis)
    }

    /// Whether something of these queues is due, or about to be, but such a claim would bring nothing,
    /// since all of it is left to others.
    pub fn leaves_all<N: Fn(&Job) -> bool>(
        &mut self,
        wants: &[Want],
        nearness: &Nearness<N>,
        now: Timestamp,
    ) -> bool {
        let mut leaves = false;
        for want in wants {
            let number = self.store.known(&want.queue);
            let Some(number) = number.filter(|number| !self.store.queues[*number].paused) else {
                continue;
            };
            let lapse = self.store.queues[number].leased.first();
            if lapse.is_some_and(|lapse| lapse.at <= now.as_millis()) {
                return false;
            }
            let (chosen, _) = nearness.choose(&mut self.store, number, 1, now);
            if !chosen.is_empty() {
                return false;
            }
            let soon = (now + nearness.ahead).as_millis();
            let first = self.store.queues[number].waiting.first();
            leaves |= first.is_some_and(|first| first.at <= soon);
        }
        leaves
    }

    /// `take` chooses at most so many of a queue, unfiles them, and says when more could be had.
    fn claim_with(
        &mut self,
        wants: &[Want],
        limit: usize,
        now: Timestamp,
        mut take: impl FnMut(&mut Store, usize, usize) -> (Vec<Slot>, Option<i64>),
    ) -> Claimed {
        self.store.reclaim(now);
        let mut claimed = Claimed { jobs: Vec::new(), next_due: None, now };
        for want in wants {
            let Some(number) = self.store.known(&want.queue) else {
                continue;
            };
            if self.store.queues[number].paused {
                continue;
            }
            let room = want.max.min(limit - claimed.jobs.len());
            let (taken, next) = take(&mut self.store, number, room);
            for slot in taken {
                let from = now.max(self.store.records[slot].job.due);
                claimed.now = claimed.now.max(from);
                let leased_until = from + want.lease_for;
                let token = self.store.lease(slot, leased_until);
                let job = self.store.records[slot].job.clone();
                claimed.jobs.push(LeasedJob { job, token, leased_until });
            }
            let lapse = self.store.queues[number].leased.first().map(|entry| entry.at);
            let next = [next, lapse].into_iter().flatten().map(Timestamp::from_millis);
            claimed.next_due = claimed.next_due.into_iter().chain(next).min();
        }
        claimed
    }

    /// [`Backend::settle`](crate::Backend::settle) of one lease.
    pub fn settle(&mut self, settlement: &Settlement, now: Timestamp) -> Settled {
        self.store.reclaim(now);
        let (answer, due_again) = self.store.settle(settlement, now);
        if let Some(due) = due_again {
            self.earlier.push((settlement.lease.queue.clone(), due));
        }
        answer
    }

    /// [`Backend::renew`](crate::Backend::renew) of one lease.
    pub fn renew(&mut self, renewal: &Renewal, now: Timestamp) -> Renewed {
        self.store.reclaim(now);
        let Some(slot) = self.store.held(&renewal.lease) else {
            return Renewed::Lost;
        };
        let until = now + renewal.lease_for;
        self.store.extend(slot, until);
        Renewed::Until(until)
    }

    /// [`Backend::stats`](crate::Backend::stats).
    pub fn stats(&mut self, queues: &[QueueName], now: Timestamp) -> Vec<QueueStats> {
        self.store.reclaim(now);
        let store = &mut self.store;
        if queues.is_empty() {
            let mut all: Vec<_> = (0..store.queues.len()).map(|n| store.stats(n, now)).collect();
            all.sort_unstable_by(|a, b| a.queue.cmp(&b.queue));
            return all;
        }
        let stats = |queue: &QueueName| match store.known(queue) {
            Some(number) => store.stats(number, now),
            None => {
                QueueStats { totals: Some(Default::default()), ..QueueStats::empty(queue.clone()) }
            }
        };
        queues.iter().map(stats).collect()
    }

    /// [`Backend::browse`](crate::Backend::browse).
    pub fn browse(&mut self, params: BrowseParams<'_>, now: Timestamp) -> Page {
        self.store.reclaim(now);
        let store = &mut self.store;
        let Some(number) = store.known(params.queue) else {
            return Page { jobs: Vec::new(), next: None };
        };
        let entries = store.list(number, params.state, params.after, now, params.limit + 1);
        let more = entries.len() > params.limit;
        let page = &entries[..entries.len().min(params.limit)];
        let next = page.last().filter(|_| more);
        Page {
            jobs: page.iter().map(|entry| store.view(entry.slot, now)).collect(),
            next: next
                .map(|last| Cursor { at: Timestamp::from_millis(last.at), seq: last.seq.into() }),
        }
    }

    /// [`Backend::get`](crate::Backend::get).
    pub fn get(&mut self, job: &JobRef, now: Timestamp) -> Option<JobView> {
        self.store.reclaim(now);
        self.store.find(&job.queue, &job.target).map(|slot| self.store.view(slot, now))
    }

    /// [`Backend::operate`](crate::Backend::operate): how many jobs or queues changed.
    pub fn operate(&mut self, queue: &QueueName, operation: &Operate, now: Timestamp) -> u64 {
        self.store.reclaim(now);
        let store = &mut self.store;
        let Some(number) = store.known(queue) else {
            if *operation == Operate::Pause {
                let number = store.number(queue);
                store.queues[number].paused = true;
                return 1;
            }
            return 0;
        };
        let affected = match operation {
            Operate::Replay { jobs, due } => {
                let due = due.resolve(now);
                let dead = store.dead(number, jobs.as_deref());
                dead.into_iter().filter(|slot| store.revive(*slot, due)).count()
            }
            Operate::Remove { jobs } => {
                let dead = store.dead(number, jobs.as_deref());
                store.remove_all(number, &dead)
            }
            Operate::Pause => usize::from(!mem::replace(&mut store.queues[number].paused, true)),
            Operate::Resume => usize::from(mem::replace(&mut store.queues[number].paused, false)),
            Operate::Purge => {
                let mut doomed = store.dead(number, None);
                let waiting = store.queues[number].waiting.after(i64::MIN, 0);
                doomed.extend(waiting.map(|entry| entry.slot));
                store.remove_all(number, &doomed)
            }
        };
        if let Operate::Replay { .. } | Operate::Resume = operation {
            self.wake(number, now);
        }
        affected as u64
    }

    /// Files something among the dead that never was a job: what the store found and could not make
    /// sense of. `false` if its id is there already.
    pub fn park(&mut self, new: NewJob, reason: DeadReason, now: Timestamp) -> bool {
        self.store.reclaim(now);
        if self.store.by_id(new.id).is_some() {
            return false;
        }
        self.store.create_dead(new, reason, now);
        true
    }

    /// The job with this id as it is filed, in whatever state and whatever queue, without the time
    /// that has passed since the last call.
    #[must_use]
    pub fn peek(&self, id: JobId) -> Option<&Job> {
        self.store.by_id(id).map(|slot| &self.store.records[slot].job)
    }

    /// Whether the job waits for its due time or for a free slot, as [`peek`](Self::peek) sees it.
    #[must_use]
    pub fn waits(&self, id: JobId) -> bool {
        let slot = self.store.by_id(id);
        slot.is_some_and(|slot| matches!(self.store.records[slot].place, Place::Waiting))
    }

    /// Whether the job is leased, as [`peek`](Self::peek) sees it.
    #[must_use]
    pub fn is_leased(&self, id: JobId) -> bool {
        let slot = self.store.by_id(id);
        slot.is_some_and(|slot| matches!(self.store.records[slot].place, Place::Leased { .. }))
    }

    /// Jobs in the machine.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.records.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.store.records.is_empty()
    }

    fn wake(&mut self, queue: usize, due: Timestamp) {
        self.earlier.push((self.store.queues[queue].name.clone(), due));
    }
}
