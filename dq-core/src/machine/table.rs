//! The jobs of a machine and the indexes over them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::index::{Arena, DueIndex, HashIndex, Slot, TimeEntry};
use super::meter::{Meter, Sizes};
use super::placement::{JobNotes, JobPlacement};
use crate::backend::{Cursor, FencingToken, Lease, Order, QueueStats, Totals};
use crate::model::{
    DeadReason, Job, JobId, JobKey, JobState, JobView, NewJob, QueueName, Target, Timestamp,
};

/// All jobs of a machine, with indexes by id, by key, and by time within each queue.
///
/// Each queue has three time indexes: of its waiting, leased and dead jobs. A job is in exactly one
/// of them, as its [`JobPlacement`] says. Methods that take an *unplaced* job expect one that is in
/// no time index and not in the meter: a new one, or one after `unplace`.
#[derive(Debug, Default)]
pub(super) struct JobTable {
    pub(super) records: Arena<JobRecord>,
    /// All jobs by id.
    ids: HashIndex,
    /// Live jobs by the index of their queue and their key.
    keys: HashIndex,
    pub(super) queues: Vec<QueueRecord>,
    /// The indexes of queues in `queues`.
    queue_indexes: HashMap<QueueName, usize>,
    pub(super) last_seq: u64,
    pub(super) last_token: u64,
    /// A lower bound of the ends of all leases, in Unix milliseconds, so that a call without
    /// expired leases visits no queue; `None` only if no job is leased.
    no_lease_ends_before: Option<i64>,
    /// The size of all jobs. A job is measured when it is placed, and taken out when it is
    /// unplaced.
    meter: Meter,
    /// See [`Machine::with_explicit_lease_ends`](super::Machine::with_explicit_lease_ends).
    pub(super) explicit_lease_ends: bool,
}

#[derive(Debug)]
pub(super) struct JobRecord {
    pub(super) job: Job,
    /// Sequence number of the insertion; orders jobs with equal times.
    pub(super) seq: u64,
    /// The index of the queue in [`JobTable::queues`].
    pub(super) queue: usize,
    pub(super) placement: JobPlacement,
    /// `None` for most jobs, which saves memory: they wait for their first run.
    pub(super) notes: Option<Box<JobNotes>>,
}

impl JobRecord {
    /// The notes, to be changed.
    pub(super) fn notes_mut(&mut self) -> &mut JobNotes {
        self.notes.get_or_insert_default()
    }

    fn size(&self, sizes: &Sizes) -> u64 {
        (sizes.job)(&self.job, self.seq, &self.placement, self.notes.as_deref())
    }
}

#[derive(Debug)]
pub(super) struct QueueRecord {
    pub(super) name: QueueName,
    /// Waiting jobs by due time.
    pub(super) waiting: DueIndex,
    /// Leased jobs by the end of the lease.
    pub(super) leased: BTreeSet<TimeEntry>,
    /// Dead jobs by the time of death.
    pub(super) dead: BTreeSet<TimeEntry>,
    pub(super) paused: bool,
    pub(super) totals: Totals,
}

impl QueueRecord {
    /// When the first lease of this queue ends, in Unix milliseconds.
    pub(super) fn first_lease_end(&self) -> Option<i64> {
        self.leased.first().map(|entry| entry.at)
    }
}

/// Queues and lookups.
impl JobTable {
    /// The index of a queue in `queues`; `None` if the queue does not exist.
    pub(super) fn find_queue(&self, name: &QueueName) -> Option<usize> {
        self.queue_indexes.get(name).copied()
    }

    /// The index of a queue in `queues`; creates the queue if it does not exist.
    pub(super) fn ensure_queue(&mut self, name: &QueueName) -> usize {
        if let Some(queue) = self.find_queue(name) {
            return queue;
        }
        let queue = self.queues.len();
        self.queues.push(QueueRecord {
            name: name.clone(),
            waiting: DueIndex::default(),
            leased: BTreeSet::new(),
            dead: BTreeSet::new(),
            paused: false,
            totals: Totals::default(),
        });
        self.queue_indexes.insert(name.clone(), queue);
        queue
    }

    /// The job with this id, in any queue and state.
    pub(super) fn find_id(&self, id: JobId) -> Option<Slot> {
        self.ids.find(&id, |slot| self.records[slot].job.id == id)
    }

    /// The live job with this key.
    pub(super) fn find_key(&self, queue: &QueueName, key: &JobKey) -> Option<Slot> {
        let queue = self.find_queue(queue)?;
        self.keys.find(&(queue, key), |slot| {
            let record = &self.records[slot];
            record.queue == queue && record.job.key.as_ref() == Some(key)
        })
    }

    /// The referenced job: by id in any state, by key only while it is live.
    pub(super) fn find(&self, queue: &QueueName, target: &Target) -> Option<Slot> {
        match target {
            Target::Id(id) => {
                self.find_id(*id).filter(|slot| self.records[*slot].job.queue == *queue)
            }
            Target::Key(key) => self.find_key(queue, key),
        }
    }

    /// The job of a lease; `None` if the lease is no longer held.
    pub(super) fn find_leased(&self, lease: &Lease) -> Option<Slot> {
        let slot = self.find_id(lease.job)?;
        match self.records[slot].placement {
            JobPlacement::Leased { token, .. } if token == lease.token => Some(slot),
            _ => None,
        }
    }

    /// The dead jobs of a queue with these ids.
    pub(super) fn find_dead(&self, queue: usize, ids: &[JobId]) -> Vec<Slot> {
        let is_dead = |slot: &Slot| {
            let record = &self.records[*slot];
            record.queue == queue && matches!(record.placement, JobPlacement::Dead(..))
        };
        // An id that is listed twice counts once.
        let distinct: BTreeSet<_> = ids.iter().copied().collect();
        distinct.into_iter().filter_map(|id| self.find_id(id)).filter(is_dead).collect()
    }
}

/// Changes; each leaves all indexes consistent.
impl JobTable {
    /// When time ends the first lease of a queue, in Unix milliseconds; `None` also if only explicit
    /// calls end leases.
    pub(super) fn first_lease_end(&self, queue: usize) -> Option<i64> {
        self.queues[queue].first_lease_end().filter(|_| !self.explicit_lease_ends)
    }

    /// Ends the leases that have expired by `now`: their jobs wait again, with one more loss.
    pub(super) fn expire_leases(&mut self, now: Timestamp) {
        let now = now.as_millis();
        if self.explicit_lease_ends || self.no_lease_ends_before.is_none_or(|end| end > now) {
            return;
        }
        for queue in 0..self.queues.len() {
            while let Some(entry) = self.queues[queue].leased.first().copied() {
                if entry.at > now {
                    break;
                }
                self.lose_lease(entry.slot);
            }
        }
        self.no_lease_ends_before =
            self.queues.iter().filter_map(QueueRecord::first_lease_end).min();
    }

    /// Makes a leased job wait again, with one more loss.
    pub(super) fn lose_lease(&mut self, slot: Slot) {
        self.change(slot, |record| record.job.losses += 1);
        self.move_to(slot, JobPlacement::Waiting);
    }

    /// Adds a new job. The caller has checked that no job has its id and, if it is live, no live
    /// job has its key.
    pub(super) fn create(
        &mut self,
        new: NewJob,
        due: Timestamp,
        placement: JobPlacement,
        now: Timestamp,
    ) {
        self.last_seq += 1;
        let mut job = Job::new(new.id, new.queue, due, now, new.payload);
        job.key = new.key;
        job.headers = new.headers;
        job.max_attempts = new.max_attempts;
        let notes = (!new.remember.is_zero())
            .then(|| Box::new(JobNotes { remember: new.remember, ..JobNotes::default() }));
        let queue = self.insert(job, self.last_seq, placement, notes);
        self.queues[queue].totals.created += 1;
    }

    /// Adds a job to all indexes; returns the index of its queue.
    pub(super) fn insert(
        &mut self,
        mut job: Job,
        seq: u64,
        placement: JobPlacement,
        notes: Option<Box<JobNotes>>,
    ) -> usize {
        let queue = self.ensure_queue(&job.queue);
        // All jobs of a queue share one allocation for its name.
        job.queue = self.queues[queue].name.clone();
        let id = job.id;
        let is_live = !matches!(placement, JobPlacement::Dead(..));
        let record = JobRecord { job, seq, queue, placement: JobPlacement::Waiting, notes };
        let slot = self.records.insert(record);
        self.ids.insert(&id, slot);
        if is_live {
            self.index_key(slot);
        }
        self.place(slot, placement);
        queue
    }

    /// Removes a job and returns its record.
    pub(super) fn remove(&mut self, slot: Slot) -> JobRecord {
        self.unplace(slot);
        self.unindex_key(slot);
        let record = self.records.remove(slot).expect("the slot has a job");
        self.ids.remove(&record.job.id, slot);
        record
    }

    /// Takes the key from a job.
    pub(super) fn detach_key(&mut self, slot: Slot) {
        self.unindex_key(slot);
        self.change(slot, |record| record.job.key = None);
    }

    /// Changes a job in what no index depends on.
    pub(super) fn change(&mut self, slot: Slot, change: impl FnOnce(&mut JobRecord)) {
        let record = &mut self.records[slot];
        self.meter.subtract(|sizes| record.size(sizes));
        change(record);
        self.meter.add(|sizes| record.size(sizes));
    }

    /// Leases a job that has been taken from the index of waiting jobs, and not from the meter.
    pub(super) fn lease(
        &mut self,
        slot: Slot,
        worker: &Arc<str>,
        since: Timestamp,
        until: Timestamp,
    ) -> FencingToken {
        self.last_token += 1;
        let token = FencingToken(self.last_token);
        let record = &mut self.records[slot];
        self.meter.subtract(|sizes| record.size(sizes));
        record.job.deliveries += 1;
        let notes = record.notes_mut();
        notes.worker = Some(Arc::clone(worker));
        notes.leased_since = Some(since);
        self.place(slot, JobPlacement::Leased { token, until });
        token
    }

    /// Changes the end of a lease.
    pub(super) fn set_lease_end(&mut self, slot: Slot, until: Timestamp) {
        if let JobPlacement::Leased { token, .. } = self.records[slot].placement {
            self.move_to(slot, JobPlacement::Leased { token, until });
        }
    }

    /// Makes a job wait until `due`, as if it had been scheduled then.
    pub(super) fn set_waiting(&mut self, slot: Slot, due: Timestamp) {
        self.change(slot, |record| record.job.first_due = due);
        self.postpone(slot, due);
    }

    /// Makes a job wait until `due`, and keeps when it was due at first.
    pub(super) fn postpone(&mut self, slot: Slot, due: Timestamp) {
        self.unplace(slot);
        self.records[slot].job.due = due;
        self.place(slot, JobPlacement::Waiting);
    }

    /// Makes a live job dead, which frees its key.
    pub(super) fn set_dead(&mut self, slot: Slot, reason: DeadReason, now: Timestamp) {
        self.unindex_key(slot);
        self.move_to(slot, JobPlacement::Dead(Box::new(reason), now));
    }

    /// Makes a dead job wait until `due`. Returns `false`, without a change, if a live job has its
    /// key.
    pub(super) fn replay(&mut self, slot: Slot, due: Timestamp) -> bool {
        let job = &self.records[slot].job;
        if job.key.as_ref().is_some_and(|key| self.find_key(&job.queue, key).is_some()) {
            return false;
        }
        self.index_key(slot);
        self.change(slot, |record| {
            record.job.attempts = 0;
            record.job.losses = 0;
            if let Some(notes) = &mut record.notes {
                notes.last_error = None;
            }
        });
        self.set_waiting(slot, due);
        true
    }

    fn move_to(&mut self, slot: Slot, placement: JobPlacement) {
        self.unplace(slot);
        self.place(slot, placement);
    }

    /// Sets the placement of an unplaced job and adds the job to the time index for it.
    fn place(&mut self, slot: Slot, placement: JobPlacement) {
        let record = &mut self.records[slot];
        let queue = &mut self.queues[record.queue];
        let entry = |at: Timestamp| TimeEntry { at: at.as_millis(), seq: record.seq, slot };
        match &placement {
            JobPlacement::Waiting => queue.waiting.insert(entry(record.job.due)),
            JobPlacement::Leased { until, .. } => {
                queue.leased.insert(entry(*until));
                let end = until.as_millis();
                let bound = &mut self.no_lease_ends_before;
                *bound = Some(bound.map_or(end, |bound| bound.min(end)));
            }
            JobPlacement::Dead(_, since) => {
                queue.dead.insert(entry(*since));
            }
        }
        record.placement = placement;
        self.meter.add(|sizes| record.size(sizes));
    }

    /// Removes a job from its time index.
    fn unplace(&mut self, slot: Slot) {
        let record = &self.records[slot];
        self.meter.subtract(|sizes| record.size(sizes));
        let JobRecord { job, seq, queue, placement, .. } = record;
        let queue = &mut self.queues[*queue];
        let entry = |at: Timestamp| TimeEntry { at: at.as_millis(), seq: *seq, slot };
        match placement {
            JobPlacement::Waiting => {
                queue.waiting.remove(job.due.as_millis(), *seq);
            }
            JobPlacement::Leased { until, .. } => {
                queue.leased.remove(&entry(*until));
            }
            JobPlacement::Dead(_, since) => {
                queue.dead.remove(&entry(*since));
            }
        }
    }

    fn index_key(&mut self, slot: Slot) {
        let JobRecord { job, queue, .. } = &self.records[slot];
        if let Some(key) = &job.key {
            self.keys.insert(&(*queue, key), slot);
        }
    }

    /// Does nothing for a dead job: its key, if indexed, leads to the slot of another job.
    fn unindex_key(&mut self, slot: Slot) {
        let JobRecord { job, queue, .. } = &self.records[slot];
        if let Some(key) = &job.key {
            self.keys.remove(&(*queue, key), slot);
        }
    }
}

/// Inspection.
impl JobTable {
    /// Measures all jobs, now and whenever they change.
    pub(super) fn measure(&mut self, sizes: Sizes) {
        self.meter = Meter::new(sizes);
        for record in self.records.iter() {
            self.meter.add(|sizes| record.size(sizes));
        }
    }

    /// What is measured, if anything is.
    pub(super) fn sizes(&self) -> Option<Sizes> {
        self.meter.sizes
    }

    /// The size of all jobs.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.meter.bytes()
    }

    /// The size of one job.
    pub(super) fn size_of(&self, slot: Slot) -> u64 {
        self.meter.sizes.as_ref().map_or(0, |sizes| self.records[slot].size(sizes))
    }

    /// A job with its state at `now`, which distinguishes scheduled from ready jobs.
    pub(super) fn view(&self, slot: Slot, now: Timestamp) -> JobView {
        let JobRecord { job, placement, notes, .. } = &self.records[slot];
        let state = match placement {
            JobPlacement::Waiting if job.due > now => JobState::Scheduled,
            JobPlacement::Waiting => JobState::Ready,
            JobPlacement::Leased { .. } => JobState::Running,
            JobPlacement::Dead(..) => JobState::Dead,
        };
        let mut view = JobView::new(job.clone(), state);
        view.last_error = notes.as_ref().and_then(|notes| notes.last_error.clone());
        match placement {
            JobPlacement::Waiting => {}
            JobPlacement::Leased { until, .. } => {
                view.leased_until = Some(*until);
                if let Some(notes) = notes {
                    view.leased_since = notes.leased_since;
                    view.worker = notes.worker.as_deref().map(str::to_owned);
                }
            }
            JobPlacement::Dead(reason, since) => view.dead = Some(((**reason).clone(), *since)),
        }
        view
    }

    /// The counts of a queue at `now`.
    pub(super) fn stats(&mut self, queue: usize, now: Timestamp) -> QueueStats {
        let queue = &mut self.queues[queue];
        let ready = queue.waiting.count_until(now.as_millis());
        QueueStats {
            queue: queue.name.clone(),
            scheduled: (queue.waiting.len() - ready) as u64,
            ready: ready as u64,
            running: queue.leased.len() as u64,
            dead: queue.dead.len() as u64,
            paused: queue.paused,
            next_due: queue.waiting.first().map(|entry| Timestamp::from_millis(entry.at)),
            totals: Some(queue.totals),
        }
    }

    /// At most `limit` stored jobs of a queue that are in `state` at `now`, in the order of
    /// `browse`.
    pub(super) fn list(
        &mut self,
        queue: usize,
        state: JobState,
        after: Option<Cursor>,
        order: Order,
        now: Timestamp,
        limit: usize,
    ) -> Vec<TimeEntry> {
        let queue = &mut self.queues[queue];
        let (first, last) = ((i64::MIN, 0), (i64::MAX, u64::MAX));
        let cursor = after
            .map(|cursor| (cursor.at.as_millis(), u64::try_from(cursor.seq).unwrap_or(u64::MAX)));
        // Scheduled jobs follow the last one that is due.
        let now = (now.as_millis(), u64::MAX);
        let index = match (state, order) {
            (JobState::Scheduled, Order::Ascending) => {
                let after = cursor.unwrap_or(first).max(now);
                return queue.waiting.after(after.0, after.1).take(limit).collect();
            }
            (JobState::Scheduled, Order::Descending) => {
                let before = cursor.unwrap_or(last);
                let waiting = queue.waiting.before(before.0, before.1);
                return waiting.take_while(|entry| entry.at > now.0).take(limit).collect();
            }
            (JobState::Ready, Order::Ascending) => {
                let after = cursor.unwrap_or(first);
                let waiting = queue.waiting.after(after.0, after.1);
                return waiting.take_while(|entry| entry.at <= now.0).take(limit).collect();
            }
            (JobState::Ready, Order::Descending) => {
                let before = cursor.unwrap_or(last).min(now);
                return queue.waiting.before(before.0, before.1).take(limit).collect();
            }
            (JobState::Running, _) => &queue.leased,
            (JobState::Dead, _) => &queue.dead,
            // `History` has the jobs that have ended.
            (JobState::Ended, _) => return Vec::new(),
        };
        // Slots do not matter: no two entries have the same sequence number.
        let entry = |(at, seq), slot| TimeEntry { at, seq, slot };
        match order {
            Order::Ascending => {
                let after = entry(cursor.unwrap_or(first), Slot::MAX);
                index.range(after..).take(limit).copied().collect()
            }
            Order::Descending => {
                let before = entry(cursor.unwrap_or(last), Slot::MIN);
                index.range(..before).rev().take(limit).copied().collect()
            }
        }
    }
}
