//! The jobs of a machine and the indexes over them.

use std::collections::{BTreeSet, HashMap};

use super::index::{Arena, DueIndex, HashIndex, Slot, TimeEntry};
use crate::backend::{Cursor, FencingToken, Lease, QueueStats, Totals};
use crate::model::{
    DeadReason, Job, JobId, JobKey, JobState, JobView, NewJob, QueueName, Target, Timestamp,
};

/// All jobs of a machine, with indexes by id, by key, and by time within each queue.
///
/// Each queue has three time indexes: of its waiting, leased and dead jobs. A job is in exactly one
/// of them, as its [`JobPlacement`] says. Methods that take an *unplaced* job expect one that has
/// just been removed from its time index.
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
    /// expired leases visits no queue; `None` if no job is leased.
    no_lease_ends_before: Option<i64>,
}

#[derive(Debug)]
pub(super) struct JobRecord {
    pub(super) job: Job,
    /// Sequence number of the insertion; orders jobs with equal times.
    pub(super) seq: u64,
    /// The index of the queue in [`JobTable::queues`].
    pub(super) queue: usize,
    pub(super) placement: JobPlacement,
}

/// Whether a job waits, is leased or is dead.
///
/// Unlike [`JobState`], it does not depend on the time: a waiting job is scheduled or ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobPlacement {
    /// The job waits for its due time or for a claim.
    Waiting,
    /// The job is leased.
    Leased {
        /// The token of the lease.
        token: FencingToken,
        /// The end of the lease.
        until: Timestamp,
    },
    /// The job is dead: the reason and the time of death.
    Dead(Box<DeadReason>, Timestamp),
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

    /// The dead jobs of a queue: all of them, oldest death first, or those with the given ids.
    pub(super) fn find_dead(&self, queue: usize, ids: Option<&[JobId]>) -> Vec<Slot> {
        let is_dead = |slot: &Slot| {
            let record = &self.records[*slot];
            record.queue == queue && matches!(record.placement, JobPlacement::Dead(..))
        };
        match ids {
            None => self.queues[queue].dead.iter().map(|entry| entry.slot).collect(),
            Some(ids) => {
                // An id that is listed twice counts once.
                let distinct: BTreeSet<_> = ids.iter().copied().collect();
                distinct.into_iter().filter_map(|id| self.find_id(id)).filter(is_dead).collect()
            }
        }
    }
}

/// Changes; each leaves all indexes consistent.
impl JobTable {
    /// Ends the leases that have expired by `now`: their jobs wait again, with one more loss.
    pub(super) fn expire_leases(&mut self, now: Timestamp) {
        let now = now.as_millis();
        if self.no_lease_ends_before.is_none_or(|end| end > now) {
            return;
        }
        for queue in 0..self.queues.len() {
            while let Some(entry) = self.queues[queue].leased.first().copied() {
                if entry.at > now {
                    break;
                }
                self.records[entry.slot].job.losses += 1;
                self.move_to(entry.slot, JobPlacement::Waiting);
            }
        }
        self.no_lease_ends_before =
            self.queues.iter().filter_map(QueueRecord::first_lease_end).min();
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
        let job = Job {
            id: new.id,
            queue: new.queue,
            key: new.key,
            due,
            created: now,
            payload: new.payload,
            headers: new.headers,
            max_attempts: new.max_attempts,
            attempts: 0,
            deliveries: 0,
            losses: 0,
        };
        let queue = self.insert(job, self.last_seq, placement);
        self.queues[queue].totals.created += 1;
    }

    /// Adds a job to all indexes; returns the index of its queue.
    pub(super) fn insert(&mut self, mut job: Job, seq: u64, placement: JobPlacement) -> usize {
        let queue = self.ensure_queue(&job.queue);
        // All jobs of a queue share one allocation for its name.
        job.queue = self.queues[queue].name.clone();
        let id = job.id;
        let is_live = !matches!(placement, JobPlacement::Dead(..));
        let record = JobRecord { job, seq, queue, placement: JobPlacement::Waiting };
        let slot = self.records.insert(record);
        self.ids.insert(&id, slot);
        if is_live {
            self.index_key(slot);
        }
        self.place(slot, placement);
        queue
    }

    /// Removes a job.
    pub(super) fn remove(&mut self, slot: Slot) {
        self.unplace(slot);
        self.unindex_key(slot);
        if let Some(record) = self.records.remove(slot) {
            self.ids.remove(&record.job.id, slot);
        }
    }

    /// Leases an unplaced job.
    pub(super) fn lease(&mut self, slot: Slot, until: Timestamp) -> FencingToken {
        self.last_token += 1;
        let token = FencingToken(self.last_token);
        self.records[slot].job.deliveries += 1;
        self.place(slot, JobPlacement::Leased { token, until });
        token
    }

    /// Changes the end of a lease.
    pub(super) fn set_lease_end(&mut self, slot: Slot, until: Timestamp) {
        if let JobPlacement::Leased { token, .. } = self.records[slot].placement {
            self.move_to(slot, JobPlacement::Leased { token, until });
        }
    }

    /// Makes a job wait until `due`.
    pub(super) fn set_waiting(&mut self, slot: Slot, due: Timestamp) {
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
        let job = &mut self.records[slot].job;
        job.attempts = 0;
        job.losses = 0;
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
    }

    /// Removes a job from its time index.
    fn unplace(&mut self, slot: Slot) {
        let JobRecord { job, seq, queue, placement } = &self.records[slot];
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

    fn unindex_key(&mut self, slot: Slot) {
        let JobRecord { job, queue, .. } = &self.records[slot];
        if let Some(key) = &job.key {
            self.keys.remove(&(*queue, key), slot);
        }
    }
}

/// Inspection.
impl JobTable {
    /// A job with its state at `now`, which distinguishes scheduled from ready jobs.
    pub(super) fn view(&self, slot: Slot, now: Timestamp) -> JobView {
        let JobRecord { job, placement, .. } = &self.records[slot];
        let (state, leased_until, dead) = match placement {
            JobPlacement::Waiting if job.due > now => (JobState::Scheduled, None, None),
            JobPlacement::Waiting => (JobState::Ready, None, None),
            JobPlacement::Leased { until, .. } => (JobState::Running, Some(*until), None),
            JobPlacement::Dead(reason, since) => {
                (JobState::Dead, None, Some(((**reason).clone(), *since)))
            }
        };
        JobView { job: job.clone(), state, leased_until, dead }
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

    /// At most `limit` jobs of a queue that are in `state` at `now`, in the order of `browse`.
    pub(super) fn list(
        &mut self,
        queue: usize,
        state: JobState,
        after: Option<Cursor>,
        now: Timestamp,
        limit: usize,
    ) -> Vec<TimeEntry> {
        let queue = &mut self.queues[queue];
        let after = after.map_or((i64::MIN, 0), |cursor| {
            (cursor.at.as_millis(), u64::try_from(cursor.seq).unwrap_or(u64::MAX))
        });
        let now = now.as_millis();
        let index = match state {
            JobState::Scheduled => {
                // Scheduled jobs follow the last one that is due.
                let after = after.max((now, u64::MAX));
                return queue.waiting.after(after.0, after.1).take(limit).collect();
            }
            JobState::Ready => {
                let waiting = queue.waiting.after(after.0, after.1);
                return waiting.take_while(|entry| entry.at <= now).take(limit).collect();
            }
            JobState::Running => &queue.leased,
            JobState::Dead => &queue.dead,
        };
        // With the largest slot, the range begins after the entry of the cursor.
        let after = TimeEntry { at: after.0, seq: after.1, slot: Slot::MAX };
        index.range(after..).take(limit).copied().collect()
    }
}
