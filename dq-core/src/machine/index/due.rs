//! Entries in order of their due times.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::Slot;

/// What the index orders: by time, then by sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The time, in Unix milliseconds.
    pub at: i64,
    /// The tie-break among equal times; unique.
    pub seq: u64,
    /// Where the record lies.
    pub slot: Slot,
}

type Place = (i64, u64);

const LEAST: Place = (i64::MIN, 0);

impl Entry {
    const fn place(&self) -> Place {
        (self.at, self.seq)
    }
}

/// Most entries of a leaf. Larger leaves make the tree above them smaller and each sort longer.
const LEAF: usize = 256;

/// A B-tree whose leaves are put in order only when somebody looks.
///
/// Insertion finds the leaf and appends; a leaf is sorted once, when it has become the first or is
/// listed. So insertion costs little more than in a timer wheel, and yet the order is exact, the
/// next time is known, and pages can be read from anywhere.
#[derive(Debug, Default)]
pub struct DueIndex {
    /// By the least place that a leaf may hold.
    leaves: BTreeMap<Place, Leaf>,
    len: usize,
}

#[derive(Debug)]
struct Leaf {
    entries: Vec<Entry>,
    /// Entries before this one have been popped.
    head: usize,
    sorted: bool,
}

impl Leaf {
    fn new() -> Self {
        Self { entries: Vec::new(), head: 0, sorted: true }
    }

    fn live(&self) -> &[Entry] {
        &self.entries[self.head..]
    }

    fn sort(&mut self) {
        if !self.sorted {
            self.entries[self.head..].sort_unstable();
            self.sorted = true;
        }
    }

    fn push(&mut self, entry: Entry) {
        self.sorted = self.sorted && self.live().last().is_none_or(|last| *last < entry);
        self.entries.push(entry);
    }

    fn remove(&mut self, place: Place) -> bool {
        let Some(at) = self.live().iter().position(|entry| entry.place() == place) else {
            return false;
        };
        if self.sorted {
            self.entries.remove(self.head + at);
        } else {
            self.entries.swap_remove(self.head + at);
        }
        true
    }

    /// Takes the upper half out of a full leaf, with the place it begins at.
    fn split(&mut self) -> (Place, Self) {
        self.entries.drain(..self.head);
        self.head = 0;
        let middle = self.entries.len() / 2;
        if !self.sorted {
            self.entries.select_nth_unstable(middle);
        }
        // A full leaf has room for as many again; the exact size would be outgrown at once.
        let mut upper = Vec::with_capacity(LEAF + 1);
        upper.extend(self.entries.drain(middle..));
        (upper[0].place(), Self { entries: upper, head: 0, sorted: self.sorted })
    }
}

impl DueIndex {
    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an entry.
    pub fn insert(&mut self, entry: Entry) {
        self.len += 1;
        let place = entry.place();
        let after_all = match self.leaves.last_key_value() {
            None => true,
            // Due times that follow insertion fill one leaf after the other, without splits.
            Some((_, leaf)) => {
                leaf.sorted
                    && leaf.live().len() >= LEAF
                    && leaf.live().last().is_some_and(|last| *last < entry)
            }
        };
        if after_all {
            let mut leaf = Leaf::new();
            leaf.push(entry);
            self.leaves.insert(place, leaf);
            return;
        }
        let leaf = self.leaf_of(place).expect("there is a leaf");
        leaf.push(entry);
        // A popped head counts, or a leaf that is popped and filled in turn would grow for ever.
        if leaf.entries.len() > LEAF {
            if leaf.live().len() > LEAF / 2 {
                let (from, upper) = leaf.split();
                self.leaves.insert(from, upper);
            } else {
                leaf.entries.drain(..leaf.head);
                leaf.head = 0;
            }
        }
    }

    /// Takes an entry out; `false` if it is not there.
    pub fn remove(&mut self, at: i64, seq: u64) -> bool {
        let place = (at, seq);
        let Some((&from, leaf)) = self.leaves.range_mut(..=place).next_back() else { return false };
        if !leaf.remove(place) {
            return false;
        }
        self.len -= 1;
        if leaf.live().is_empty() {
            self.leaves.remove(&from);
        }
        true
    }

    /// The first entry.
    pub fn first(&mut self) -> Option<Entry> {
        let mut first = self.leaves.first_entry()?;
        first.get_mut().sort();
        first.get().live().first().copied()
    }

    /// Takes the first entry out, if its time is not after `now`.
    pub fn pop(&mut self, now: i64) -> Option<Entry> {
        let mut first = self.leaves.first_entry()?;
        let leaf = first.get_mut();
        leaf.sort();
        let entry = *leaf.live().first()?;
        if entry.at > now {
            return None;
        }
        leaf.head += 1;
        self.len -= 1;
        if leaf.live().is_empty() {
            first.remove();
        }
        Some(entry)
    }

    /// How many entries have a time that is not after `now`.
    #[must_use]
    pub fn count_until(&self, now: i64) -> usize {
        let mut count = 0;
        let mut leaves = self.leaves.iter().peekable();
        while let Some((_, leaf)) = leaves.next() {
            // Everything in this leaf is before the place the next one begins at.
            match leaves.peek() {
                Some((from, _)) if from.0 <= now => count += leaf.live().len(),
                _ => {
                    count += leaf.live().iter().filter(|entry| entry.at <= now).count();
                    break;
                }
            }
        }
        count
    }

    /// The entries after this place, in order. Leaves on the way are sorted.
    pub fn after(&mut self, at: i64, seq: u64) -> impl Iterator<Item = Entry> + '_ {
        let place = (at, seq);
        let from = self.leaves.range(..=place).next_back().map(|(from, _)| *from);
        let bounds = (from.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded);
        self.leaves
            .range_mut(bounds)
            .flat_map(|(_, leaf)| {
                leaf.sort();
                leaf.live().iter().copied()
            })
            .skip_while(move |entry| entry.place() <= place)
    }

    /// The leaf that may hold this place. What is less than the first leaf goes there too; that leaf
    /// is then filed under the least place of all, so that the leaves stay in order when it splits.
    fn leaf_of(&mut self, place: Place) -> Option<&mut Leaf> {
        let (least, _) = self.leaves.first_key_value()?;
        if place < *least {
            let (_, first) = self.leaves.pop_first()?;
            self.leaves.insert(LEAST, first);
        }
        self.leaves.range_mut(..=place).next_back().map(|(_, leaf)| leaf)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// Random operations against a `BTreeSet`, over few and over many distinct times.
    #[test]
    fn agrees_with_a_btree_set() {
        for range in [3_i64, 1_000, i64::MAX / 4] {
            let mut rng = SmallRng::seed_from_u64(range.unsigned_abs());
            let mut index = DueIndex::default();
            let mut model = BTreeSet::new();
            for seq in 0..20_000_u64 {
                let at = rng.random_range(-range..range);
                match rng.random_range(0..10) {
                    0..6 => {
                        index.insert(Entry { at, seq, slot: 0 });
                        model.insert((at, seq));
                    }
                    6..8 => {
                        let victim = model.range((at, 0)..).next().copied();
                        if let Some((at, seq)) = victim {
                            assert!(index.remove(at, seq));
                            model.remove(&(at, seq));
                        }
                        assert!(!index.remove(at, u64::MAX));
                    }
                    8 => {
                        let expected = model.first().copied().filter(|(first, _)| *first <= at);
                        assert_eq!(index.pop(at).map(|entry| entry.place()), expected);
                        expected.map(|place| model.remove(&place));
                    }
                    _ => {
                        assert_eq!(index.count_until(at), model.range(..(at + 1, 0)).count());
                        let listed: Vec<_> =
                            index.after(at, seq).take(5).map(|entry| entry.place()).collect();
                        let from = (Bound::Excluded((at, seq)), Bound::Unbounded);
                        let expected: Vec<_> = model.range(from).take(5).copied().collect();
                        assert_eq!(listed, expected);
                    }
                }
                assert_eq!(index.len(), model.len());
                assert_eq!(index.first().map(|entry| entry.place()), model.first().copied());
            }
        }
    }

    #[test]
    fn a_leaf_that_is_filled_and_popped_in_turn_does_not_grow() {
        let mut index = DueIndex::default();
        for seq in 0..10_000 {
            index.insert(Entry { at: 0, seq, slot: 0 });
            index.insert(Entry { at: 1, seq, slot: 0 });
            index.pop(0);
            index.pop(1);
        }
        assert!(index.is_empty() && index.leaves.is_empty());
    }
}
