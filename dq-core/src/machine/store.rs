//! The state machine of the contract, over plain structures: what every other backend is held
//! against.

use std::collections::{BTreeSet, HashMap};

use super::index::{Arena, DueIndex, Entry, Lookup, Slot};
use crate::backend::{FencingToken, QueueStats, Receipt, Scheduled, Totals};
use crate::model::{
    DeadReason, Job, JobId, JobKey, JobState, JobView, NewJob, QueueName, Target, Timestamp,
};

/// All jobs of one memory backend.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) records: Arena<Record>,
    pub(super) ids: Lookup,
    keys: Lookup,
    pub(super) queues: Vec<Queue>,
    numbers: HashMap<QueueName, usize>,
    pub(super) next_seq: u64,
    pub(super) last_token: u64,
    /// No lease ends before this, in Unix milliseconds; `None` if there is none.
    next_lapse: Option<i64>,
}

#[derive(Debug)]
pub(super) struct Record {
    pub(super) job: Job,
    pub(super) seq: u64,
    pub(super) queue: usize,
    pub(super) place: Place,
}

/// Where a job is filed.
#[derive(Debug)]
pub(super) enum Place {
    Waiting,
    Leased { token: FencingToken, until: Timestamp },
    Dead(Box<(DeadReason, Timestamp)>),
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: QueueName,
    pub(super) waiting: DueIndex,
    /// By the end of the lease.
    pub(super) leased: BTreeSet<Entry>,
    /// By the time of death.
    pub(super) dead: BTreeSet<Entry>,
    pub(super) paused: bool,
    pub(super) totals: Totals,
}

impl Store {
    /// The number of a queue that is known.
    pub(super) fn known(&self, queue: &QueueName) -> Option<usize> {
        self.numbers.get(queue).copied()
    }

    /// The number of a queue; it is known from now on.
    pub(super) fn number(&mut self, queue: &QueueName) -> usize {
        if let Some(number) = self.known(queue) {
            return number;
        }
        self.queues.push(Queue {
            name: queue.clone(),
            waiting: DueIndex::default(),
            leased: BTreeSet::new(),
            dead: BTreeSet::new(),
            paused: false,
            totals: Totals::default(),
        });
        self.numbers.insert(queue.clone(), self.queues.len() - 1);
        self.queues.len() - 1
    }

    /// Gives lapsed leases back, so that every call sees the store as it is at `now`.
    pub(super) fn reclaim(&mut self, now: Timestamp) {
        if self.next_lapse.is_none_or(|lapse| lapse > now.as_millis()) {
            return;
        }
        for number in 0..self.queues.len() {
            while let Some(entry) = self.queues[number].leased.first().copied() {
                if entry.at > now.as_millis() {
                    break;
                }
                self.unlease(entry.slot);
                self.records[entry.slot].job.losses += 1;
                self.wait(entry.slot);
            }
        }
        let ends = self.queues.iter().filter_map(|queue| queue.leased.first());
        self.next_lapse = ends.map(|entry| entry.at).min();
    }

    /// Stores a job that has neither the id nor the key of another.
    pub(super) fn create(&mut self, new: NewJob, due: Timestamp, now: Timestamp) -> Receipt {
        let receipt = Receipt { id: new.id, due };
        let slot = self.insert(new, due, now);
        self.file_key(slot);
        self.wait(slot);
        receipt
    }

    /// Stores what is dead from the beginning, under an id that no other has.
    pub(super) fn create_dead(&mut self, new: NewJob, reason: DeadReason, now: Timestamp) {
        let due = new.due.resolve(now);
        let slot = self.insert(new, due, now);
        self.bury(slot, reason, now);
    }

    /// A new record, which is filed nowhere but under its id.
    fn insert(&mut self, new: NewJob, due: Timestamp, now: Timestamp) -> Slot {
        let queue = self.number(&new.queue);
        self.next_seq += 1;
        let job = Job {
            id: new.id,
            // The name that is kept once per queue, so that a job costs a pointer of its own.
            queue: self.queues[queue].name.clone(),
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
        let record = Record { job, seq: self.next_seq, queue, place: Place::Waiting };
        let slot = self.records.insert(record);
        self.ids.insert(&new.id, slot);
        self.queues[queue].totals.created += 1;
        slot
    }

    /// The answer to a job whose id or key another one has.
    pub(super) fn conflict(&self, slot: Slot) -> Scheduled {
        let Record { job, place, .. } = &self.records[slot];
        let receipt = Receipt { id: job.id, due: job.due };
        match place {
            Place::Leased { .. } => Scheduled::AlreadyRunning(receipt),
            Place::Waiting | Place::Dead(_) => Scheduled::Kept(receipt),
        }
    }

    /// The job with this id, in whatever state.
    pub(super) fn by_id(&self, id: JobId) -> Option<Slot> {
        self.ids.find(&id, |slot| self.records[slot].job.id == id)
    }

    /// The live job with this key.
    pub(super) fn by_key(&self, queue: &QueueName, key: &JobKey) -> Option<Slot> {
        let queue = self.known(queue)?;
        self.keys.find(&(queue, key), |slot| {
            let record = &self.records[slot];
            record.queue == queue && record.job.key.as_ref() == Some(key)
        })
    }

    /// The job that is meant, in whatever state.
    pub(super) fn find(&self, queue: &QueueName, target: &Target) -> Option<Slot> {
        match target {
            Target::Id(id) => {
                self.by_id(*id).filter(|slot| self.records[*slot].job.queue == *queue)
            }
            Target::Key(key) => self.by_key(queue, key),
        }
    }

    /// Takes a job out of the store for good.
    pub(super) fn remove(&mut self, slot: Slot) {
        self.unfile(slot);
        self.unfile_key(slot);
        if let Some(record) = self.records.remove(slot) {
            self.ids.remove(&record.job.id, slot);
        }
    }

    /// Files a job that is filed nowhere under its due time.
    pub(super) fn wait(&mut self, slot: Slot) {
        let record = &mut self.records[slot];
        record.place = Place::Waiting;
        let entry = Entry { at: record.job.due.as_millis(), seq: record.seq, slot };
        self.queues[record.queue].waiting.insert(entry);
    }

    /// Leases a job that is filed nowhere.
    pub(super) fn lease(&mut self, slot: Slot, until: Timestamp) -> FencingToken {
        self.last_token += 1;
        let token = FencingToken(self.last_token);
        self.records[slot].job.deliveries += 1;
        self.relet(slot, token, until);
        token
    }

    /// Files a job that is filed nowhere under the end of its lease.
    pub(super) fn relet(&mut self, slot: Slot, token: FencingToken, until: Timestamp) {
        let record = &mut self.records[slot];
        record.place = Place::Leased { token, until };
        let entry = Entry { at: until.as_millis(), seq: record.seq, slot };
        self.queues[record.queue].leased.insert(entry);
        self.next_lapse = Some(self.next_lapse.map_or(entry.at, |lapse| lapse.min(entry.at)));
    }

    /// Takes a lease away; the job is then filed nowhere.
    pub(super) fn unlease(&mut self, slot: Slot) {
        self.unfile(slot);
    }

    /// Files a job that is filed nowhere among the dead. It holds its key no longer.
    pub(super) fn bury(&mut self, slot: Slot, reason: DeadReason, now: Timestamp) {
        self.unfile_key(slot);
        let record = &mut self.records[slot];
        record.place = Place::Dead(Box::new((reason, now)));
        let entry = Entry { at: now.as_millis(), seq: record.seq, slot };
        self.queues[record.queue].dead.insert(entry);
    }

    /// Makes a dead job live again; `false` if another has its key.
    pub(super) fn revive(&mut self, slot: Slot, due: Timestamp) -> bool {
        let job = &self.records[slot].job;
        if job.key.as_ref().is_some_and(|key| self.by_key(&job.queue, key).is_some()) {
            return false;
        }
        self.unfile(slot);
        self.file_key(slot);
        let job = &mut self.records[slot].job;
        job.due = due;
        job.attempts = 0;
        job.losses = 0;
        self.wait(slot);
        true
    }

    /// Moves a waiting job to another due time.
    pub(super) fn delay(&mut self, slot: Slot, due: Timestamp) {
        self.unfile(slot);
        self.records[slot].job.due = due;
        self.wait(slot);
    }

    /// The state of a job at `now`.
    pub(super) fn view(&self, slot: Slot, now: Timestamp) -> JobView {
        let Record { job, place, .. } = &self.records[slot];
        let mut view =
            JobView { job: job.clone(), state: JobState::Ready, leased_until: None, dead: None };
        match place {
            Place::Waiting if job.due > now => view.state = JobState::Scheduled,
            Place::Waiting => {}
            Place::Leased { until, .. } => {
                view.state = JobState::Running;
                view.leased_until = Some(*until);
            }
            Place::Dead(death) => {
                view.state = JobState::Dead;
                view.dead = Some((**death).clone());
            }
        }
        view
    }

    /// The counts of a queue at `now`.
    pub(super) fn stats(&mut self, number: usize, now: Timestamp) -> QueueStats {
        let queue = &mut self.queues[number];
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

    /// Takes a job out of whatever order it is filed in.
    fn unfile(&mut self, slot: Slot) {
        let Record { job, seq, queue, place } = &self.records[slot];
        let queue = &mut self.queues[*queue];
        let filed = |at: Timestamp| Entry { at: at.as_millis(), seq: *seq, slot };
        match place {
            Place::Waiting => {
                queue.waiting.remove(job.due.as_millis(), *seq);
            }
            Place::Leased { until, .. } => {
                queue.leased.remove(&filed(*until));
            }
            Place::Dead(death) => {
                queue.dead.remove(&filed(death.1));
            }
        }
    }

    pub(super) fn file_key(&mut self, slot: Slot) {
        let Record { job, queue, .. } = &self.records[slot];
        if let Some(key) = &job.key {
            self.keys.insert(&(*queue, key), slot);
        }
    }

    fn unfile_key(&mut self, slot: Slot) {
        let Record { job, queue, .. } = &self.records[slot];
        if let Some(key) = &job.key {
            self.keys.remove(&(*queue, key), slot);
        }
    }
}
