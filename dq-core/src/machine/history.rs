//! Jobs that have ended: the history of each queue, and pinned ids.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use super::meter::{Meter, Sizes};
use crate::backend::{Cursor, Order, Receipt};
use crate::model::{HistoryLimit, HistoryLimits, JobId, JobView, QueueName, Timestamp};

/// Maximum number of jobs, and of pins, that a call drops because they are too old. It is more than a
/// call adds, so that they become fewer, and few, so that a million of one age hold up nobody. The same
/// in all builds that share a log of calls.
const MAX_DROPPED: usize = 16;

/// The position of an ended job in the history of its queue: when it ended, in Unix milliseconds,
/// and a sequence number.
type Position = (i64, u64);

/// The ended jobs of all queues, and the ids that are pinned.
///
/// The two are independent: a pinned id stays pinned after its job has left the history.
#[derive(Debug, Default)]
pub(super) struct History {
    queues: HashMap<QueueName, QueueHistory>,
    /// Pinned ids: until when, and the receipt of the ended job.
    pins: HashMap<JobId, (Timestamp, Receipt)>,
    /// The ends of all pins.
    pin_ends: BTreeSet<(Timestamp, JobId)>,
    /// The sequence number of the job that ended last.
    pub(super) last_seq: u64,
    /// The size of all ended jobs and pins.
    meter: Meter,
}

/// The ended jobs of one queue.
#[derive(Debug, Default)]
struct QueueHistory {
    jobs: BTreeMap<Position, JobView>,
    ids: HashMap<JobId, Position>,
}

impl QueueHistory {
    /// Inserts an ended job. An id that was scheduled again when its end was too long ago may end
    /// again; then its earlier end is forgotten.
    fn insert(&mut self, position: Position, view: JobView, meter: &mut Meter) {
        meter.add(|sizes| (sizes.ended)(position.1, &view));
        if let Some(earlier) = self.ids.insert(view.job.id, position)
            && let Some(view) = self.jobs.remove(&earlier)
        {
            meter.subtract(|sizes| (sizes.ended)(earlier.1, &view));
        }
        self.jobs.insert(position, view);
    }

    /// Drops jobs beyond `limit`, at most `max_dropped`. Those that are too old are not shown anyway.
    fn truncate(
        &mut self,
        limit: HistoryLimit,
        now: Timestamp,
        max_dropped: usize,
        meter: &mut Meter,
    ) {
        let oldest = (now - limit.age).as_millis();
        for _ in 0..max_dropped {
            let Some(((at, _), _)) = self.jobs.first_key_value() else { return };
            if *at >= oldest && self.jobs.len() <= limit.max as usize {
                return;
            }
            let Some(((_, seq), view)) = self.jobs.pop_first() else { return };
            meter.subtract(|sizes| (sizes.ended)(seq, &view));
            self.ids.remove(&view.job.id);
        }
    }
}

impl History {
    /// Adds a job that has ended, and drops jobs of its queue beyond `limit`.
    pub(super) fn add(&mut self, view: JobView, limit: HistoryLimit) {
        let Some(now) = view.ended.as_ref().map(|ended| ended.at) else { return };
        if limit.max == 0 {
            return;
        }
        self.last_seq += 1;
        let jobs = self.queues.entry(view.job.queue.clone()).or_default();
        jobs.insert((now.as_millis(), self.last_seq), view, &mut self.meter);
        jobs.truncate(limit, now, MAX_DROPPED, &mut self.meter);
    }

    /// Adds an ended job with the sequence number that it had. Drops no jobs: they come in no
    /// particular order, and if the clock was set back, the limits applied in another order than the
    /// one in which the jobs ended would drop some that are still within them.
    pub(super) fn restore(&mut self, seq: u64, view: JobView) {
        let Some(at) = view.ended.as_ref().map(|ended| ended.at.as_millis()) else { return };
        let jobs = self.queues.entry(view.job.queue.clone()).or_default();
        jobs.insert((at, seq), view, &mut self.meter);
    }

    /// Drops the jobs beyond these limits.
    pub(super) fn truncate(&mut self, limits: &HistoryLimits, now: Timestamp) {
        for (queue, jobs) in &mut self.queues {
            jobs.truncate(limits.of(queue), now, usize::MAX, &mut self.meter);
        }
        self.queues.retain(|_, jobs| !jobs.jobs.is_empty());
    }

    /// Measures all ended jobs and pins, now and whenever they change.
    pub(super) fn measure(&mut self, sizes: Sizes) {
        let mut meter = Meter::new(sizes);
        self.ended().for_each(|(seq, view)| meter.add(|sizes| (sizes.ended)(seq, view)));
        self.pins().for_each(|(receipt, until)| meter.add(|sizes| (sizes.pin)(&receipt, until)));
        self.meter = meter;
    }

    /// The size of all ended jobs and pins.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.meter.bytes()
    }

    /// All ended jobs with their sequence numbers, in no particular order.
    pub(super) fn ended(&self) -> impl Iterator<Item = (u64, &JobView)> {
        let jobs = self.queues.values().flat_map(|queue| &queue.jobs);
        jobs.map(|((_, seq), view)| (*seq, view))
    }

    /// All pinned ids, and until when.
    pub(super) fn pins(&self) -> impl Iterator<Item = (Receipt, Timestamp)> + '_ {
        self.pins.values().map(|(until, receipt)| (*receipt, *until))
    }

    /// Pins an id until `until`.
    pub(super) fn pin(&mut self, receipt: Receipt, until: Timestamp) {
        self.meter.add(|sizes| (sizes.pin)(&receipt, until));
        if let Some((earlier, replaced)) = self.pins.insert(receipt.id, (until, receipt)) {
            self.meter.subtract(|sizes| (sizes.pin)(&replaced, earlier));
            self.pin_ends.remove(&(earlier, receipt.id));
        }
        self.pin_ends.insert((until, receipt.id));
    }

    /// The receipt of the ended job with this id, if the id is pinned at `now`. Drops some of the pins
    /// that have ended.
    pub(super) fn pinned(&mut self, id: JobId, now: Timestamp) -> Option<Receipt> {
        for _ in 0..MAX_DROPPED {
            let Some((until, id)) = self.pin_ends.first().copied().filter(|pin| pin.0 <= now)
            else {
                break;
            };
            self.pin_ends.remove(&(until, id));
            if let Some((_, receipt)) = self.pins.remove(&id) {
                self.meter.subtract(|sizes| (sizes.pin)(&receipt, until));
            }
        }
        self.pins.get(&id).filter(|(until, _)| *until > now).map(|(_, receipt)| *receipt)
    }

    /// The ended job of a queue with this id, if it has not ended longer ago than `limit` allows.
    pub(super) fn get(
        &self,
        queue: &QueueName,
        id: JobId,
        limit: HistoryLimit,
        now: Timestamp,
    ) -> Option<&JobView> {
        let QueueHistory { jobs, ids } = self.queues.get(queue)?;
        let position = ids.get(&id).filter(|(at, _)| *at >= (now - limit.age).as_millis())?;
        jobs.get(position)
    }

    /// The jobs of a queue that ended at most [`HistoryLimit::age`] ago and are beyond `after` in this
    /// order, with their positions.
    pub(super) fn list(
        &self,
        queue: &QueueName,
        after: Option<Cursor>,
        order: Order,
        limit: HistoryLimit,
        now: Timestamp,
    ) -> Box<dyn Iterator<Item = (Cursor, &JobView)> + '_> {
        let Some(QueueHistory { jobs, .. }) = self.queues.get(queue) else {
            return Box::new(std::iter::empty());
        };
        // A larger sequence number is that of no ended job.
        let after = after
            .map(|cursor| (cursor.at.as_millis(), u64::try_from(cursor.seq).unwrap_or(u64::MAX)));
        let oldest = (now - limit.age).as_millis();
        let entry = |(position, view)| (cursor(position), view);
        match order {
            Order::Ascending => {
                // Sequence numbers begin at 1, so this excludes no job that ended at `oldest`.
                let after = after.unwrap_or((i64::MIN, 0)).max((oldest, 0));
                Box::new(jobs.range((Bound::Excluded(after), Bound::Unbounded)).map(entry))
            }
            Order::Descending => {
                let newer = jobs.range(..after.unwrap_or((i64::MAX, u64::MAX))).rev();
                Box::new(newer.take_while(move |(position, _)| position.0 >= oldest).map(entry))
            }
        }
    }
}

fn cursor(&(at, seq): &Position) -> Cursor {
    Cursor { at: Timestamp::from_millis(at), seq: u128::from(seq) }
}
