//! A machine's jobs and their indexes.

use std::collections::{BTreeSet, HashMap};
use std::iter;
use std::sync::Arc;

use super::groups::MAX_PARKED;
use super::index::{Arena, DueIndex, HashIndex, MIN_KEY, Slot, TimeEntry};
use super::meter::{Meter, Sizes};
use super::placement::{JobNotes, JobPlacement, Stored};
use super::queue::QueueRecord;
use crate::backend::{BrowseParams, FencingToken, Lease, Order, QueueStats, Totals};
use crate::model::{
    DeadReason, Job, JobId, JobKey, JobState, JobView, NewJob, QueueName, Target, Timestamp,
};

/// All jobs, indexed by id, key, and time within each queue.
///
/// Each queue has three time indexes: waiting, leased and dead jobs. A job is in exactly one, given
/// by its [`JobPlacement`], unless it is parked (`groups.rs`). An *unplaced* job (a new one, or one
/// after `unplace`) is in none of them and not in the meter.
#[derive(Debug, Default)]
pub(super) struct JobTable<R> {
    pub(super) records: Arena<JobRecord<R>>,
    ids: HashIndex,
    /// Finds live jobs by queue number and key.
    keys: HashIndex,
    pub(super) queues: Vec<QueueRecord>,
    queue_numbers: HashMap<QueueName, usize>,
    pub(super) last_seq: u64,
    pub(super) last_token: u64,
    /// A lower bound for lease ends in Unix milliseconds, so that calls before it visit no queue.
    /// `None` only if no job is leased.
    no_lease_ends_before: Option<i64>,
    /// Sums the sizes of placed jobs.
    meter: Meter,
    /// See [`Machine::with_explicit_lease_ends`](super::Machine::with_explicit_lease_ends).
    pub(super) explicit_lease_ends: bool,
}

/// How many jobs a claim takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quota {
    pub(super) max: usize,
    /// How many of them start at once.
    pub(super) starting: usize,
}

/// What a claim does with a due job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Admitted,
    Parked,
    /// It waits, and the claim takes no later job either.
    Left,
}

#[derive(Debug)]
pub(super) struct JobRecord<R> {
    pub(super) job: Job,
    pub(super) stored: R,
    /// Sequence number of the insertion; orders jobs with equal times.
    pub(super) seq: u64,
    pub(super) queue: usize,
    pub(super) placement: JobPlacement,
    /// `None` for most jobs, to save memory: they wait for their first run.
    pub(super) notes: Option<Box<JobNotes>>,
}

impl<R: Stored> JobRecord<R> {
    pub(super) fn notes_mut(&mut self) -> &mut JobNotes {
        self.notes.get_or_insert_default()
    }

    fn size(&self, sizes: &Sizes) -> u64 {
        (sizes.job)(&self.job, self.seq, &self.placement, self.notes.as_deref())
            + self.stored.bytes()
    }
}

impl<R: Stored> JobTable<R> {
    pub(super) fn find_queue(&self, name: &QueueName) -> Option<usize> {
        self.queue_numbers.get(name).copied()
    }

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
            groups: None,
            limited: None,
        });
        self.queue_numbers.insert(name.clone(), queue);
        queue
    }

    pub(super) fn find_id(&self, id: JobId) -> Option<Slot> {
        self.ids.find(&id, |slot| self.records[slot].job.id == id)
    }

    pub(super) fn find_key(&self, queue: &QueueName, key: &JobKey) -> Option<Slot> {
        let queue = self.find_queue(queue)?;
        self.keys.find(&(queue, key), |slot| {
            let record = &self.records[slot];
            record.queue == queue && record.job.key.as_ref() == Some(key)
        })
    }

    /// Finds a job by id in any state, by key only while live.
    pub(super) fn find(&self, queue: &QueueName, target: &Target) -> Option<Slot> {
        match target {
            Target::Id(id) => {
                self.find_id(*id).filter(|slot| self.records[*slot].job.queue == *queue)
            }
            Target::Key(key) => self.find_key(queue, key),
        }
    }

    /// Finds a lease's job; `None` if the lease is no longer held.
    pub(super) fn find_leased(&self, lease: &Lease) -> Option<Slot> {
        let slot = self.find_id(lease.job)?;
        match self.records[slot].placement {
            JobPlacement::Leased { token, .. } if token == lease.token => Some(slot),
            _ => None,
        }
    }

    pub(super) fn find_dead(&self, queue: usize, ids: &[JobId]) -> Vec<Slot> {
        let is_dead = |slot: &Slot| {
            let record = &self.records[*slot];
            record.queue == queue && matches!(record.placement, JobPlacement::Dead(..))
        };
        // An id listed twice counts once.
        let distinct: BTreeSet<_> = ids.iter().copied().collect();
        distinct.into_iter().filter_map(|id| self.find_id(id)).filter(is_dead).collect()
    }
}

/// Changes; each leaves all indexes consistent.
impl<R: Stored> JobTable<R> {
    /// Returns when a queue's first lease expires by time, in Unix milliseconds; `None` also if
    /// only explicit calls end leases.
    pub(super) fn first_lease_end(&self, queue: usize) -> Option<i64> {
        let first = self.queues[queue].leased.first().filter(|_| !self.explicit_lease_ends);
        first.map(|entry| entry.at)
    }

    /// Expires leases that end by `now`: their jobs wait again, with one more loss.
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
            (0..self.queues.len()).filter_map(|queue| self.first_lease_end(queue)).min();
    }

    pub(super) fn lose_lease(&mut self, slot: Slot) {
        self.change(slot, |record| record.job.losses += 1);
        self.move_to(slot, JobPlacement::Waiting);
    }

    /// Adds a new job. The caller has checked that its id is free and, for a live job, its key.
    pub(super) fn create(
        &mut self,
        new: NewJob,
        stored: R,
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
        let queue = self.insert(job, stored, self.last_seq, placement, notes);
        self.queues[queue].totals.created += 1;
    }

    pub(super) fn insert(
        &mut self,
        mut job: Job,
        stored: R,
        seq: u64,
        placement: JobPlacement,
        notes: Option<Box<JobNotes>>,
    ) -> usize {
        let queue = self.ensure_queue(&job.queue);
        // All jobs in a queue share one allocation for its name.
        job.queue = self.queues[queue].name.clone();
        let id = job.id;
        let is_live = !matches!(placement, JobPlacement::Dead(..));
        let record = JobRecord { job, stored, seq, queue, placement: JobPlacement::Waiting, notes };
        let slot = self.records.insert(record);
        self.ids.insert(&id, slot);
        if is_live {
            self.index_key(slot);
        }
        if let (JobPlacement::Leased { .. }, Some(group)) =
            (&placement, self.records[slot].job.group())
        {
            self.queues[queue].groups.get_or_insert_default().start(group);
        }
        self.place(slot, placement);
        queue
    }

    pub(super) fn remove(&mut self, slot: Slot) -> JobRecord<R> {
        self.unplace(slot);
        self.unindex_key(slot);
        let record = self.records.remove(slot);
        self.ids.remove(&record.job.id, slot);
        record
    }

    pub(super) fn detach_key(&mut self, slot: Slot) {
        self.unindex_key(slot);
        self.change(slot, |record| record.job.key = None);
    }

    /// Changes a record and its measured size. A field that an index uses must be out of the index.
    pub(super) fn change(&mut self, slot: Slot, change: impl FnOnce(&mut JobRecord<R>)) {
        let record = &mut self.records[slot];
        self.meter.subtract(|sizes| record.size(sizes));
        change(record);
        self.meter.add(|sizes| record.size(sizes));
    }

    /// Takes due jobs out of the index of waiting jobs, for [`Self::lease`]. Stops after parking
    /// [`MAX_PARKED`].
    pub(super) fn take_due(&mut self, queue: usize, quota: Quota, now: Timestamp) -> Vec<Slot> {
        let (mut taken, mut parked) = (Vec::new(), 0);
        while taken.len() < quota.max
            && parked < MAX_PARKED
            && let Some(entry) = self.queues[queue].waiting.pop(now.as_millis())
        {
            match self.admit(entry, taken.len() >= quota.starting) {
                Admission::Admitted => taken.push(entry.slot),
                Admission::Parked => parked += 1,
                Admission::Left => break,
            }
        }
        taken
    }

    /// Counts a job that was taken out of the index of waiting jobs in its group, or parks it if
    /// the group is full. One that would wait in a runner returns to the index if its group would
    /// then use more than half of its limit.
    pub(super) fn admit(&mut self, entry: TimeEntry, would_wait: bool) -> Admission {
        let record = &self.records[entry.slot];
        let Some(group) = record.job.group() else { return Admission::Admitted };
        let queue = &mut self.queues[record.queue];
        let groups = queue.groups.get_or_insert_default();
        if let Some(limited) = &queue.limited {
            let running = groups.running(group);
            if limited.gate.group_is_full(running) {
                groups.park(group, entry);
                return Admission::Parked;
            }
            if would_wait && !limited.gate.group_stays_half_free(running) {
                queue.waiting.insert(entry);
                return Admission::Left;
            }
        }
        groups.start(group);
        Admission::Admitted
    }

    /// Returns whether a waiting job stands in its group's line.
    pub(super) fn is_parked(&self, slot: Slot) -> bool {
        let JobRecord { job, seq, queue, .. } = &self.records[slot];
        let entry = TimeEntry { at: job.due.as_millis(), seq: *seq, slot };
        let groups = job.group().zip(self.queues[*queue].groups.as_ref());
        groups.is_some_and(|(group, groups)| groups.is_parked(group, entry))
    }

    /// Parks a waiting job, to restore a snapshot.
    pub(super) fn park(&mut self, slot: Slot) {
        let JobRecord { job, seq, queue, .. } = &self.records[slot];
        let entry = TimeEntry { at: job.due.as_millis(), seq: *seq, slot };
        let queue = &mut self.queues[*queue];
        if let Some(group) = job.group()
            && queue.waiting.remove(entry.key())
        {
            queue.groups.get_or_insert_default().park(group, entry);
        }
    }

    /// Parks a due job that is later than a parked one of its group. Returns `false` for other
    /// jobs.
    pub(super) fn park_behind_line(&mut self, id: JobId, now: Timestamp) -> bool {
        let Some(slot) = self.find_id(id) else { return false };
        let JobRecord { job, seq, queue, .. } = &self.records[slot];
        let entry = TimeEntry { at: job.due.as_millis(), seq: *seq, slot };
        let groups = job.group().zip(self.queues[*queue].groups.as_ref());
        let is_behind = job.due <= now
            && groups.is_some_and(|(group, groups)| groups.is_behind_line(group, entry));
        if is_behind {
            self.park(slot);
        }
        is_behind
    }

    /// Returns whether jobs of the job's group are parked.
    pub(super) fn has_line(&self, slot: Slot) -> bool {
        let JobRecord { job, queue, .. } = &self.records[slot];
        let groups = job.group().zip(self.queues[*queue].groups.as_ref());
        groups.is_some_and(|(group, groups)| groups.has_line(group))
    }

    /// Leases a job that [`Self::admit`] has returned.
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

    /// Makes a job wait until `due`, as if scheduled then.
    pub(super) fn set_waiting(&mut self, slot: Slot, due: Timestamp) {
        self.change(slot, |record| record.job.first_due = due);
        self.postpone(slot, due);
    }

    /// Makes a job wait until `due` and keeps its `first_due`.
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

    /// Makes a dead job wait until `due`. Returns `false` and changes nothing if a live job has its
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

    /// Changes when a lease expires.
    pub(super) fn renew(&mut self, slot: Slot, token: FencingToken, until: Timestamp) {
        let record = &self.records[slot];
        self.meter.subtract(|sizes| record.size(sizes));
        if let JobPlacement::Leased { until, .. } = record.placement {
            let entry = TimeEntry { at: until.as_millis(), seq: record.seq, slot };
            self.queues[record.queue].leased.remove(&entry);
        }
        self.place(slot, JobPlacement::Leased { token, until });
    }

    pub(super) fn move_to(&mut self, slot: Slot, placement: JobPlacement) {
        self.unplace(slot);
        self.place(slot, placement);
    }

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

    /// Takes a job out of its time index and the meter.
    fn unplace(&mut self, slot: Slot) {
        let record = &self.records[slot];
        self.meter.subtract(|sizes| record.size(sizes));
        let JobRecord { job, seq, queue, placement, .. } = record;
        let queue = &mut self.queues[*queue];
        let entry = |at: Timestamp| TimeEntry { at: at.as_millis(), seq: *seq, slot };
        match placement {
            JobPlacement::Waiting => {
                queue.remove_waiting(job, entry(job.due));
            }
            JobPlacement::Leased { until, .. } => {
                queue.remove_leased(job, entry(*until));
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

    /// Removes a live job's key from the index. A dead job's key, if indexed, leads to another slot
    /// and stays.
    fn unindex_key(&mut self, slot: Slot) {
        let JobRecord { job, queue, .. } = &self.records[slot];
        if let Some(key) = &job.key {
            self.keys.remove(&(*queue, key), slot);
        }
    }
}

/// Inspection.
impl<R: Stored> JobTable<R> {
    pub(super) fn measure(&mut self, sizes: Sizes) {
        self.meter = Meter::new(sizes);
        for record in self.records.iter() {
            self.meter.add(|sizes| record.size(sizes));
        }
    }

    pub(super) fn sizes(&self) -> Option<Sizes> {
        self.meter.sizes
    }

    pub(super) fn stored_bytes(&self) -> u64 {
        self.meter.bytes
    }

    pub(super) fn size_of(&self, slot: Slot) -> u64 {
        self.meter.sizes.as_ref().map_or(0, |sizes| self.records[slot].size(sizes))
    }

    /// Returns a job with its state at `now`, which tells scheduled from ready jobs.
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

    pub(super) fn stats(&mut self, queue: usize, now: Timestamp) -> QueueStats {
        let queue = &mut self.queues[queue];
        let ready = queue.counts_until(iter::once(now.as_millis()))[0];
        let parked = queue.groups.as_ref().map_or(0, |groups| groups.parked.len());
        QueueStats {
            queue: queue.name.clone(),
            scheduled: (queue.waiting.len() + parked - ready) as u64,
            ready: ready as u64,
            running: queue.leased.len() as u64,
            dead: queue.dead.len() as u64,
            paused: queue.paused,
            next_due: queue.first_waiting().map(|entry| Timestamp::from_millis(entry.at)),
            totals: Some(queue.totals),
            flow: queue.limited.as_ref().map_or_else(Default::default, |it| it.gate.state(now)),
        }
    }

    /// Lists jobs in `browse` order: one more than a page has. Ended jobs are not in the table.
    pub(super) fn list(&mut self, params: &BrowseParams<'_>, now: Timestamp) -> Vec<TimeEntry> {
        let Some(queue) = self.find_queue(params.queue) else { return Vec::new() };
        let queue = &mut self.queues[queue];
        let (first, last) = (MIN_KEY, (i64::MAX, u64::MAX));
        // Scheduled jobs follow the last due job.
        let now = (now.as_millis(), u64::MAX);
        let (after, before) = match params.state {
            JobState::Scheduled => params.positions_between(now, last),
            JobState::Ready => params.positions_between(first, now),
            _ => params.positions_between(first, last),
        };
        let limit = params.limit + 1;
        let index = match params.state {
            JobState::Scheduled | JobState::Ready => {
                return queue.list_waiting((after, before), params.order, limit);
            }
            JobState::Running => &queue.leased,
            JobState::Dead => &queue.dead,
            JobState::Ended => return Vec::new(),
        };
        // Sequence numbers are unique, so the slot only excludes the cursor's own job.
        let entry = |(at, seq), slot| TimeEntry { at, seq, slot };
        match params.order {
            Order::Ascending => {
                index.range(entry(after, Slot::MAX)..).take(limit).copied().collect()
            }
            Order::Descending => {
                index.range(..entry(before, Slot::MIN)).rev().take(limit).copied().collect()
            }
        }
    }
}
