//! Deduplicates entries by producer id and sequence number. A producer numbers its entries from 1
//! without gaps and may append an entry several times.

use std::collections::HashMap;

/// A producer is forgotten after this many entries from others, so that ended processes do not add
/// up. Far fewer are written while a copy is under way. A process that is silent for so long finds
/// a gap and goes on as another producer. Part of the log's format.
const EXPIRY_ENTRIES: u64 = 20_000_000;
/// A producer is active if others have appended fewer entries since its last one. It only counts
/// for the budget in flight, so it may differ between processes.
const ACTIVE_ENTRIES: u64 = 10_000;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Producers {
    last_entries: HashMap<u64, LastEntry>,
    entries: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct LastEntry {
    sequence: u64,
    number: u64,
}

impl Producers {
    /// 0 for an unknown producer.
    pub(crate) fn last_sequence(&self, producer_id: u64) -> u64 {
        self.last_entries.get(&producer_id).map_or(0, |last| last.sequence)
    }

    /// Records the producer's next entry. All replicas forget producers at the same entry.
    pub(crate) fn record(&mut self, producer_id: u64, sequence: u64) {
        self.entries += 1;
        self.last_entries.insert(producer_id, LastEntry { sequence, number: self.entries });
        if self.entries.is_multiple_of(EXPIRY_ENTRIES / 4) {
            self.last_entries.retain(|_, last| last.number + EXPIRY_ENTRIES > self.entries);
        }
    }

    pub(crate) fn active(&self) -> u64 {
        let is_active = |last: &&LastEntry| last.number + ACTIVE_ENTRIES > self.entries;
        self.last_entries.values().filter(is_active).count() as u64
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.entries = self.entries.max(other.entries);
        for (id, last) in other.last_entries {
            if last.sequence > self.last_sequence(id) {
                self.last_entries.insert(id, last);
            }
        }
    }

    /// Counts the entries in `read` that are missing here.
    pub(crate) fn missing(&self, read: &Self) -> u64 {
        let is_kept = |last: &&LastEntry| last.number + EXPIRY_ENTRIES > self.entries;
        let missing =
            |(id, last): (&u64, &LastEntry)| last.sequence.saturating_sub(self.last_sequence(*id));
        read.last_entries.iter().filter(|(_, last)| is_kept(last)).map(missing).sum()
    }

    pub(crate) fn to_wire(&self) -> Vec<(u64, u64, u64)> {
        let producers = self.last_entries.iter();
        producers.map(|(id, last)| (*id, last.sequence, last.number)).collect()
    }

    pub(crate) fn from_wire(producers: Vec<(u64, u64, u64)>) -> Self {
        // The last recorded entry is some producer's last one.
        let entries = producers.iter().map(|(.., number)| *number).max().unwrap_or_default();
        let producer = |(id, sequence, number)| (id, LastEntry { sequence, number });
        Self { last_entries: producers.into_iter().map(producer).collect(), entries }
    }
}
