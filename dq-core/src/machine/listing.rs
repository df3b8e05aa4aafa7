//! What is filed where, for whoever looks or cleans up.

use std::collections::BTreeSet;

use super::index::{Entry, Slot};
use super::store::{Place, Store};
use crate::backend::Cursor;
use crate::model::{JobId, JobState, Timestamp};

impl Store {
    /// One page of a listing, as it is filed.
    pub(super) fn list(
        &mut self,
        number: usize,
        state: JobState,
        after: Option<Cursor>,
        now: Timestamp,
        limit: usize,
    ) -> Vec<Entry> {
        let queue = &mut self.queues[number];
        let from = after.map_or((i64::MIN, 0), |cursor| {
            (cursor.at.as_millis(), u64::try_from(cursor.seq).unwrap_or(u64::MAX))
        });
        let now = now.as_millis();
        let set = match state {
            JobState::Scheduled => {
                // Scheduled jobs begin after the last that is due.
                let from = from.max((now, u64::MAX));
                return queue.waiting.after(from.0, from.1).take(limit).collect();
            }
            JobState::Ready => {
                let ready = queue.waiting.after(from.0, from.1);
                return ready.take_while(|entry| entry.at <= now).take(limit).collect();
            }
            JobState::Running => &queue.leased,
            JobState::Dead => &queue.dead,
        };
        let from = Entry { at: from.0, seq: from.1, slot: Slot::MAX };
        set.range(from..).take(limit).copied().collect()
    }

    /// These dead jobs of a queue, or all of them, oldest death first.
    pub(super) fn dead(&self, number: usize, jobs: Option<&[JobId]>) -> Vec<Slot> {
        let dead = |slot: &Slot| {
            let record = &self.records[*slot];
            record.queue == number && matches!(record.place, Place::Dead(_))
        };
        match jobs {
            None => self.queues[number].dead.iter().map(|entry| entry.slot).collect(),
            Some(ids) => {
                // An id that is named twice is one job.
                let distinct: BTreeSet<_> = ids.iter().copied().collect();
                distinct.into_iter().filter_map(|id| self.by_id(id)).filter(dead).collect()
            }
        }
    }

    pub(super) fn remove_all(&mut self, number: usize, slots: &[Slot]) -> usize {
        for slot in slots {
            self.remove(*slot);
        }
        self.queues[number].totals.removed += slots.len() as u64;
        slots.len()
    }
}
