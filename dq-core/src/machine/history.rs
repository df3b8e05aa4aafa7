//! Remembers ended jobs by queue, and pinned ids, which cannot be scheduled again for a while.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use super::meter::{Meter, Sizes};
use crate::backend::{BrowseParams, Cursor, Order, Receipt};
use crate::model::{HistoryLimit, HistoryLimits, JobId, JobView, QueueName, Timestamp};

/// Maximum jobs, and pins, that one call drops by age. A call adds fewer, so the backlog shrinks,
/// yet a million of one age block no other call. Builds that share a log must agree on it.
const MAX_DROPPED: usize = 16;

/// An ended job's position in its queue's history: its end in Unix milliseconds, and its sequence
/// number.
type Position = (i64, u64);

/// The history of all queues, and the pinned ids. An id stays pinned after its job has left the
/// history.
#[derive(Debug, Default)]
pub(super) struct History {
    queues: HashMap<QueueName, QueueHistory>,
    pins: HashMap<JobId, (Timestamp, Receipt)>,
    pin_ends: BTreeSet<(Timestamp, JobId)>,
    pub(super) last_seq: u64,
    meter: Meter,
}

#[derive(Debug, Default)]
struct QueueHistory {
    jobs: BTreeMap<Position, JobView>,
    ids: HashMap<JobId, Position>,
}

impl QueueHistory {
    /// Adds an ended job. An id can end twice, if it was scheduled again after its pin and history
    /// entry expired: the earlier end is forgotten.
    fn insert(&mut self, position: Position, view: JobView, meter: &mut Meter) {
        meter.add(|sizes| (sizes.ended)(position.1, &view));
        if let Some(earlier) = self.ids.insert(view.job.id, position)
            && let Some(view) = self.jobs.remove(&earlier)
        {
            meter.subtract(|sizes| (sizes.ended)(earlier.1, &view));
        }
        self.jobs.insert(position, view);
    }

    /// Drops at most `max_dropped` jobs beyond `limit`. Reads hide older jobs in any case.
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

    /// Adds an ended job under its old sequence number. Drops nothing, because in another order
    /// than before, the limits could drop other jobs.
    pub(super) fn restore(&mut self, seq: u64, view: JobView) {
        let Some(at) = view.ended.as_ref().map(|ended| ended.at.as_millis()) else { return };
        let jobs = self.queues.entry(view.job.queue.clone()).or_default();
        jobs.insert((at, seq), view, &mut self.meter);
    }

    pub(super) fn truncate(&mut self, limits: &HistoryLimits, now: Timestamp) {
        for (queue, jobs) in &mut self.queues {
            jobs.truncate(limits.of(queue), now, usize::MAX, &mut self.meter);
        }
        self.queues.retain(|_, jobs| !jobs.jobs.is_empty());
    }

    pub(super) fn measure(&mut self, sizes: Sizes) {
        let mut meter = Meter::new(sizes);
        self.ended().for_each(|(seq, view)| meter.add(|sizes| (sizes.ended)(seq, view)));
        self.pins().for_each(|(receipt, until)| meter.add(|sizes| (sizes.pin)(&receipt, until)));
        self.meter = meter;
    }

    pub(super) fn stored_bytes(&self) -> u64 {
        self.meter.bytes
    }

    pub(super) fn ended(&self) -> impl Iterator<Item = (u64, &JobView)> {
        let jobs = self.queues.values().flat_map(|queue| &queue.jobs);
        jobs.map(|((_, seq), view)| (*seq, view))
    }

    pub(super) fn pins(&self) -> impl Iterator<Item = (Receipt, Timestamp)> + '_ {
        self.pins.values().map(|(until, receipt)| (*receipt, *until))
    }

    pub(super) fn pin(&mut self, receipt: Receipt, until: Timestamp) {
        self.meter.add(|sizes| (sizes.pin)(&receipt, until));
        if let Some((earlier, replaced)) = self.pins.insert(receipt.id, (until, receipt)) {
            self.meter.subtract(|sizes| (sizes.pin)(&replaced, earlier));
            self.pin_ends.remove(&(earlier, receipt.id));
        }
        self.pin_ends.insert((until, receipt.id));
    }

    /// Returns the receipt of a pinned id. Each call also drops some expired pins.
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

    /// Finds an ended job within `limit`'s age.
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

    /// Lists ended jobs within `limit`'s age in `browse` order: one more than a page has.
    pub(super) fn list(
        &self,
        params: &BrowseParams<'_>,
        limit: HistoryLimit,
        now: Timestamp,
    ) -> Vec<(Cursor, JobView)> {
        let Some(QueueHistory { jobs, .. }) = self.queues.get(params.queue) else {
            return Vec::new();
        };
        // Sequence numbers begin at 1, so this keeps jobs that ended just at the limit.
        let oldest = ((now - limit.age).as_millis(), 0);
        let (after, before) = params.positions_between(oldest, (i64::MAX, u64::MAX));
        if after >= before {
            return Vec::new();
        }
        let listed = jobs.range((Bound::Excluded(after), Bound::Excluded(before)));
        let entry = |(&(at, seq), view): (&Position, &JobView)| {
            (Cursor { at: Timestamp::from_millis(at), seq: u128::from(seq) }, view.clone())
        };
        match params.order {
            Order::Ascending => listed.take(params.limit + 1).map(entry).collect(),
            Order::Descending => listed.rev().take(params.limit + 1).map(entry).collect(),
        }
    }
}
