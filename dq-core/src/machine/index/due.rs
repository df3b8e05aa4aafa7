//! An index of jobs by due time.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::arena::Slot;

/// A job in an index by time, ordered by time, then sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeEntry {
    /// Time in Unix milliseconds.
    pub at: i64,
    /// Unique sequence number, which orders entries with equal times.
    pub seq: u64,
    /// The record's slot.
    pub slot: Slot,
}

/// An entry's time in Unix milliseconds, and its sequence number.
pub type Key = (i64, u64);

/// A key before all entries.
pub const MIN_KEY: Key = (i64::MIN, 0);

impl TimeEntry {
    /// Returns time and sequence number, which determine the order.
    pub const fn key(&self) -> Key {
        (self.at, self.seq)
    }
}

/// Maximum entries in a leaf. Larger leaves make the tree smaller and sorting a leaf slower.
const LEAF_CAPACITY: usize = 256;

/// An index of waiting jobs by due time: a B-tree with lazily sorted leaves.
///
/// An insertion appends to a leaf, which is sorted when it becomes the first one or is listed. So
/// an insertion costs little more than in a timer wheel, yet the order is exact and pages can start
/// anywhere.
#[derive(Debug, Default)]
pub struct DueIndex {
    /// By the smallest key that the leaf may hold.
    leaves: BTreeMap<Key, Leaf>,
    len: usize,
}

#[derive(Debug)]
struct Leaf {
    entries: Vec<TimeEntry>,
    /// How many entries at the front have been popped.
    head: usize,
    sorted: bool,
}

impl Leaf {
    fn remaining(&self) -> &[TimeEntry] {
        &self.entries[self.head..]
    }

    fn sort(&mut self) {
        if !self.sorted {
            self.entries[self.head..].sort_unstable();
            self.sorted = true;
        }
    }

    fn push(&mut self, entry: TimeEntry) {
        self.sorted = self.sorted && self.remaining().last().is_none_or(|last| *last < entry);
        self.entries.push(entry);
    }

    fn remove(&mut self, key: Key) -> bool {
        let Some(index) = self.remaining().iter().position(|entry| entry.key() == key) else {
            return false;
        };
        match self.sorted {
            true => self.entries.remove(self.head + index),
            false => self.entries.swap_remove(self.head + index),
        };
        true
    }

    /// Frees the places of popped entries.
    fn compact(&mut self) {
        self.entries.drain(..self.head);
        self.head = 0;
    }

    /// Moves the later half of the entries to a new leaf. Returns its smallest key.
    fn split(&mut self) -> (Key, Self) {
        self.compact();
        let middle = self.entries.len() / 2;
        if !self.sorted {
            self.entries.select_nth_unstable(middle);
        }
        // Full capacity, so that the next insertion does not reallocate.
        let mut upper = Vec::with_capacity(LEAF_CAPACITY + 1);
        upper.extend(self.entries.drain(middle..));
        (upper[0].key(), Self { entries: upper, head: 0, sorted: self.sorted })
    }
}

impl DueIndex {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an entry.
    pub fn insert(&mut self, entry: TimeEntry) {
        self.len += 1;
        let key = entry.key();
        // Ascending due times fill leaf after leaf without splits.
        let starts_leaf = self.leaves.last_key_value().is_none_or(|(_, leaf)| {
            let is_full = leaf.remaining().len() >= LEAF_CAPACITY;
            is_full && leaf.sorted && leaf.remaining().last().is_some_and(|last| *last < entry)
        });
        if starts_leaf {
            self.leaves.insert(key, Leaf { entries: vec![entry], head: 0, sorted: true });
            return;
        }
        // Smaller keys go into the first leaf too. It is then stored under the smallest possible
        // key, so that the leaves stay in order when it splits.
        if self.leaves.first_key_value().is_some_and(|(smallest, _)| key < *smallest)
            && let Some((_, first)) = self.leaves.pop_first()
        {
            self.leaves.insert(MIN_KEY, first);
        }
        let (_, leaf) = self.leaves.range_mut(..=key).next_back().expect("a leaf has smaller keys");
        leaf.push(entry);
        // Popped entries count, or a leaf popped and filled in turn grows forever.
        if leaf.entries.len() > LEAF_CAPACITY {
            if leaf.remaining().len() > LEAF_CAPACITY / 2 {
                let (from, upper) = leaf.split();
                self.leaves.insert(from, upper);
            } else {
                leaf.compact();
            }
        }
    }

    /// Removes an entry. Returns `false` if it does not exist.
    pub fn remove(&mut self, key: Key) -> bool {
        let Some((&from, leaf)) = self.leaves.range_mut(..=key).next_back() else { return false };
        if !leaf.remove(key) {
            return false;
        }
        self.len -= 1;
        if leaf.remaining().is_empty() {
            self.leaves.remove(&from);
        }
        true
    }

    /// Returns the first entry.
    pub fn first(&mut self) -> Option<TimeEntry> {
        let mut first = self.leaves.first_entry()?;
        first.get_mut().sort();
        first.get().remaining().first().copied()
    }

    /// Removes and returns the first entry, if due by `now`.
    pub fn pop(&mut self, now: i64) -> Option<TimeEntry> {
        let mut first = self.leaves.first_entry()?;
        let leaf = first.get_mut();
        leaf.sort();
        let entry = *leaf.remaining().first()?;
        if entry.at > now {
            return None;
        }
        leaf.head += 1;
        self.len -= 1;
        if leaf.remaining().is_empty() {
            first.remove();
        }
        Some(entry)
    }

    /// Counts the entries due by each of these ascending times. Visits each leaf once.
    pub fn counts_until(
        &self,
        times: impl IntoIterator<Item = i64>,
    ) -> impl Iterator<Item = usize> {
        let mut leaves = self.leaves.iter();
        let (mut leaf, mut next) = (leaves.next(), leaves.next());
        let mut before = 0;
        times.into_iter().map(move |time| {
            // A leaf's keys are all smaller than the next leaf's smallest key.
            while let (Some((_, passed)), Some((from, _))) = (leaf, next)
                && from.0 <= time
            {
                before += passed.remaining().len();
                (leaf, next) = (next, leaves.next());
            }
            let entries = leaf.iter().flat_map(|(_, leaf)| leaf.remaining());
            before + entries.filter(|entry| entry.at <= time).count()
        })
    }

    /// Returns the entries after a key, in order. Sorts the leaves it passes.
    pub fn after(&mut self, key: Key) -> impl Iterator<Item = TimeEntry> + '_ {
        let from = self.leaves.range(..=key).next_back().map(|(from, _)| *from);
        let bounds = (from.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded);
        self.leaves
            .range_mut(bounds)
            .flat_map(|(_, leaf)| {
                leaf.sort();
                leaf.remaining().iter().copied()
            })
            .skip_while(move |entry| entry.key() <= key)
    }

    /// Returns the entries before a key, last first. Sorts the leaves it passes.
    pub fn before(&mut self, key: Key) -> impl Iterator<Item = TimeEntry> + '_ {
        self.leaves
            .range_mut(..=key)
            .rev()
            .flat_map(|(_, leaf)| {
                leaf.sort();
                leaf.remaining().iter().rev().copied()
            })
            .skip_while(move |entry| entry.key() >= key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn random_operations_agree_with_a_btree_set() {
        for range in [3_i64, 1_000, i64::MAX / 4] {
            let mut rng = SmallRng::seed_from_u64(range.unsigned_abs());
            let mut index = DueIndex::default();
            let mut model = BTreeSet::new();
            for seq in 0..20_000_u64 {
                let at = rng.random_range(-range..range);
                match rng.random_range(0..10) {
                    0..6 => {
                        index.insert(TimeEntry { at, seq, slot: 0 });
                        model.insert((at, seq));
                    }
                    6..8 => {
                        if let Some(key) = model.range((at, 0)..).next().copied() {
                            assert!(index.remove(key) && model.remove(&key));
                        }
                        assert!(!index.remove((at, u64::MAX)));
                    }
                    8 => {
                        let expected = model.first().copied().filter(|(first, _)| *first <= at);
                        assert_eq!(index.pop(at).map(|entry| entry.key()), expected);
                        expected.map(|key| model.remove(&key));
                    }
                    _ => {
                        let times = [-range - 1, at, at, at + range / 8, range];
                        let counts: Vec<_> = index.counts_until(times).collect();
                        let expected = times.map(|time| model.range(..(time + 1, 0)).count());
                        assert_eq!(counts, expected);
                        let key = (at, seq);
                        let after = index.after(key).take(5).map(|entry| entry.key());
                        let expected = model.range((Bound::Excluded(key), Bound::Unbounded));
                        assert!(after.eq(expected.take(5).copied()));
                        let before = index.before(key).take(5).map(|entry| entry.key());
                        assert!(before.eq(model.range(..key).rev().take(5).copied()));
                    }
                }
                assert_eq!(index.len(), model.len());
                assert_eq!(index.first().map(|entry| entry.key()), model.first().copied());
            }
        }
    }

    #[test]
    fn a_leaf_whose_entries_are_all_popped_is_removed() {
        let mut index = DueIndex::default();
        for seq in 0..10_000 {
            index.insert(TimeEntry { at: 0, seq, slot: 0 });
            index.insert(TimeEntry { at: 1, seq, slot: 0 });
            index.pop(0);
            index.pop(1);
        }
        assert!(index.is_empty() && index.leaves.is_empty());
    }
}
