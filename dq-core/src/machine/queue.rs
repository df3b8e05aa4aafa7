//! A queue's jobs by time, and its limits.

use std::collections::BTreeSet;

use super::gate::{Gate, Room};
use super::groups::Groups;
use super::index::{DueIndex, Key, TimeEntry};
use super::line::Line;
use crate::backend::{Order, Totals};
use crate::model::{Job, QueueName, Timestamp};

#[derive(Debug)]
pub(super) struct QueueRecord {
    pub(super) name: QueueName,
    pub(super) waiting: DueIndex,
    pub(super) leased: BTreeSet<TimeEntry>,
    pub(super) dead: BTreeSet<TimeEntry>,
    pub(super) paused: bool,
    pub(super) totals: Totals,
    /// `None` as long as no job with a group has run or waits.
    pub(super) groups: Option<Box<Groups>>,
    /// `None` as long as the queue has had no limit.
    pub(super) limited: Option<Box<Limited>>,
}

/// The gate of a queue, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct Limited {
    pub(super) gate: Gate,
    pub(super) line: Line,
}

impl QueueRecord {
    pub(super) fn room(&self, now: Timestamp) -> Room {
        match &self.limited {
            Some(limited) => limited.gate.room(self.leased.len(), now),
            None => Room::Jobs(usize::MAX),
        }
    }

    /// Returns how many jobs of a group may run at once.
    pub(super) fn group_limit(&self) -> Option<usize> {
        let flow = self.limited.as_ref()?.gate.flow();
        flow.group_max_running.map(|max| max as usize)
    }

    /// Removes a waiting job from the indexes.
    pub(super) fn remove_waiting(&mut self, job: &Job, entry: TimeEntry) {
        let limit = self.group_limit();
        if let (Some(group), Some(groups)) = (job.group(), &mut self.groups) {
            if groups.remove(group, entry) {
                return;
            }
            // It may have been one of the jobs that may start.
            let has_room = limit.is_none_or(|limit| groups.running(group) < limit);
            if let Some(first) = has_room.then(|| groups.take_first(group)).flatten() {
                self.waiting.insert(first);
            }
        }
        self.waiting.remove(entry.key());
    }

    pub(super) fn remove_leased(&mut self, job: &Job, entry: TimeEntry) {
        self.leased.remove(&entry);
        if let (Some(group), Some(groups)) = (job.group(), &mut self.groups)
            && let Some(first) = groups.end(group)
        {
            self.waiting.insert(first);
        }
    }

    /// Returns all parked jobs to the index, after a limit has changed.
    pub(super) fn unpark_all(&mut self) {
        let parked = self.groups.as_mut().map(|groups| groups.take_all());
        parked.into_iter().flatten().for_each(|entry| self.waiting.insert(entry));
    }

    pub(super) fn has_parked(&self) -> bool {
        self.groups.as_ref().is_some_and(|groups| !groups.parked.is_empty())
    }

    /// Returns the earliest waiting job, parked or not.
    pub(super) fn first_waiting(&mut self) -> Option<TimeEntry> {
        let parked = self.groups.as_mut().and_then(|groups| groups.parked.first());
        self.waiting.first().into_iter().chain(parked).min()
    }

    /// Counts the waiting jobs due by each of these ascending times.
    pub(super) fn counts_until(&self, times: impl Iterator<Item = i64> + Clone) -> Vec<usize> {
        let mut counts: Vec<usize> = self.waiting.counts_until(times.clone()).collect();
        if let Some(groups) = &self.groups {
            let parked = groups.parked.counts_until(times);
            counts.iter_mut().zip(parked).for_each(|(count, parked)| *count += parked);
        }
        counts
    }

    /// Lists waiting jobs between two keys (both excluded), at most `limit`.
    pub(super) fn list_waiting(
        &mut self,
        (after, before): (Key, Key),
        order: Order,
        limit: usize,
    ) -> Vec<TimeEntry> {
        let parked = self.groups.as_mut().map(|groups| &mut groups.parked);
        let mut entries = Vec::new();
        for index in [Some(&mut self.waiting), parked].into_iter().flatten() {
            let is_listed = |entry: &TimeEntry| after < entry.key() && entry.key() < before;
            match order {
                Order::Ascending => {
                    entries.extend(index.after(after).take_while(is_listed).take(limit));
                }
                Order::Descending => {
                    entries.extend(index.before(before).take_while(is_listed).take(limit));
                }
            }
        }
        entries.sort_unstable();
        if order == Order::Descending {
            entries.reverse();
        }
        entries.truncate(limit);
        entries
    }

    pub(super) fn is_limited(&self) -> bool {
        self.limited.as_ref().is_some_and(|limited| limited.gate.flow().is_limited())
    }

    pub(super) fn gate_mut(&mut self) -> &mut Gate {
        &mut self.limited.get_or_insert_default().gate
    }

    /// Changes limits; returns how many have changed, 0 or 1. Only a change that sets a limit
    /// creates a gate.
    pub(super) fn change_gate(
        &mut self,
        sets_limit: bool,
        change: impl FnOnce(&mut Gate),
    ) -> usize {
        if !sets_limit && self.limited.is_none() {
            return 0;
        }
        let before = *self.gate_mut();
        change(self.gate_mut());
        let after = *self.gate_mut();
        if after.flow().group_max_running != before.flow().group_max_running {
            self.unpark_all();
        }
        usize::from(after != before)
    }
}
