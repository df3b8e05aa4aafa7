//! A queue's groups: how many jobs of each run, and which wait for room.
//!
//! A claim that meets a due job of a full group *parks* it: the job moves from the index of waiting
//! jobs to its group's line, so that later claims do not meet it again. When a job of the group has
//! run, or leaves the index, the line's first job returns to its old place there.
//!
//! So each parked job is later than as many of its group's indexed jobs as may still start, and a
//! claim takes the same jobs as if it had searched all, up to [`MAX_PARKED`]. That does not hold
//! for claims with preferences, which pass over jobs: so replicas must agree on who is parked.

use std::collections::{BTreeSet, HashMap};
use std::mem;

use super::index::{DueIndex, TimeEntry};

/// After so many parked jobs a claim leaves the rest to the next one. Builds that share a log must
/// agree on it.
pub(super) const MAX_PARKED: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct Groups {
    by_name: HashMap<Box<str>, Group>,
    /// The jobs of all lines.
    pub(super) parked: DueIndex,
}

/// Exists while it has running or parked jobs.
#[derive(Debug, Default)]
struct Group {
    running: usize,
    line: BTreeSet<TimeEntry>,
}

impl Groups {
    pub(super) fn running(&self, name: &str) -> usize {
        self.by_name.get(name).map_or(0, |group| group.running)
    }

    pub(super) fn start(&mut self, name: &str) {
        self.group(name).running += 1;
    }

    /// Counts the end of a run. Returns the job that returns to the index.
    pub(super) fn end(&mut self, name: &str) -> Option<TimeEntry> {
        let group = self.by_name.get_mut(name)?;
        group.running -= 1;
        let first = self.take_first(name);
        self.forget_empty(name);
        first
    }

    pub(super) fn park(&mut self, name: &str, entry: TimeEntry) {
        self.group(name).line.insert(entry);
        self.parked.insert(entry);
    }

    /// Takes a job out of its line. Returns `false` if it is not parked.
    pub(super) fn remove(&mut self, name: &str, entry: TimeEntry) -> bool {
        let Some(group) = self.by_name.get_mut(name) else { return false };
        if !group.line.remove(&entry) {
            return false;
        }
        self.parked.remove(entry.key());
        self.forget_empty(name);
        true
    }

    pub(super) fn take_first(&mut self, name: &str) -> Option<TimeEntry> {
        let first = self.by_name.get_mut(name)?.line.pop_first()?;
        self.parked.remove(first.key());
        self.forget_empty(name);
        Some(first)
    }

    pub(super) fn take_all(&mut self) -> Vec<TimeEntry> {
        self.parked = DueIndex::default();
        let all = self.by_name.values_mut().flat_map(|group| mem::take(&mut group.line)).collect();
        self.by_name.retain(|_, group| group.running > 0);
        all
    }

    pub(super) fn is_parked(&self, name: &str, entry: TimeEntry) -> bool {
        self.by_name.get(name).is_some_and(|group| group.line.contains(&entry))
    }

    pub(super) fn has_line(&self, name: &str) -> bool {
        self.by_name.get(name).is_some_and(|group| !group.line.is_empty())
    }

    pub(super) fn is_behind_line(&self, name: &str, entry: TimeEntry) -> bool {
        let first = self.by_name.get(name).and_then(|group| group.line.first());
        first.is_some_and(|first| *first < entry)
    }

    fn group(&mut self, name: &str) -> &mut Group {
        if !self.by_name.contains_key(name) {
            self.by_name.insert(name.into(), Group::default());
        }
        self.by_name.get_mut(name).expect("inserted above")
    }

    fn forget_empty(&mut self, name: &str) {
        if self.by_name.get(name).is_some_and(|group| group.running == 0 && group.line.is_empty()) {
            self.by_name.remove(name);
        }
    }
}
