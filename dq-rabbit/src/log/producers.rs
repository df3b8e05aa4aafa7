//! Deduplication of entries by producer id and sequence number.
//!
//! A producer is one open log; it numbers its entries from 1 without gaps, and may append an entry
//! several times.

use std::collections::HashMap;

/// A producer is forgotten after this many entries, or up to a quarter more: so that those of ended
/// processes do not add up. Until then a late copy of one of its entries is ignored. It is far more
/// than are written while a copy can be under way. A process that writes nothing for so long finds a
/// gap before its next entry, and goes on as another producer. All builds that share a log must have
/// the same number: their replicas would differ otherwise.
const EXPIRY_ENTRIES: u64 = 20_000_000;
/// A producer is active for this many entries of others. Only for the budget of what is in flight,
/// so it may differ between processes.
const ACTIVE_ENTRIES: u64 = 10_000;

/// The last entry of each producer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Producers {
    last_entries: HashMap<u64, LastEntry>,
    /// Number of entries that were recorded. It goes on over generations.
    entries: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct LastEntry {
    sequence: u64,
    /// Its number among the entries of all producers.
    number: u64,
}

/// How the sequence number of an entry relates to those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SequenceCheck {
    /// The entry follows the last one of its producer and takes effect.
    Next,
    /// An entry with this number has taken effect before.
    Duplicate,
    /// Entries are missing between the last one and this one, which therefore has no effect.
    Gap {
        /// The last number before the gap; 0 if the producer is unknown.
        last: u64,
    },
}

impl Producers {
    /// The last sequence number of this producer; 0 if it is unknown.
    pub(crate) fn last_sequence(&self, producer_id: u64) -> u64 {
        self.last_entries.get(&producer_id).map_or(0, |last| last.sequence)
    }

    /// Checks an entry, and records it if it is the producer's next.
    pub(crate) fn record(&mut self, producer_id: u64, sequence: u64) -> SequenceCheck {
        let last = self.last_sequence(producer_id);
        if sequence <= last {
            return SequenceCheck::Duplicate;
        }
        if sequence > last + 1 {
            return SequenceCheck::Gap { last };
        }
        self.entries += 1;
        self.last_entries.insert(producer_id, LastEntry { sequence, number: self.entries });
        self.expire();
        SequenceCheck::Next
    }

    /// Number of producers that have written lately.
    pub(crate) fn active(&self) -> u64 {
        let is_active = |last: &&LastEntry| last.number + ACTIVE_ENTRIES > self.entries;
        self.last_entries.values().filter(is_active).count() as u64
    }

    /// Adds what was read of another copy of the log.
    pub(crate) fn merge(&mut self, other: Self) {
        self.entries = self.entries.max(other.entries);
        for (id, last) in other.last_entries {
            if last.sequence > self.last_sequence(id) {
                self.last_entries.insert(id, last);
            }
        }
    }

    /// How many of the entries are missing here that `read` has.
    pub(crate) fn missing(&self, read: &Self) -> u64 {
        let is_kept = |last: &&LastEntry| last.number + EXPIRY_ENTRIES > self.entries;
        let missing =
            |(id, last): (&u64, &LastEntry)| last.sequence.saturating_sub(self.last_sequence(*id));
        read.last_entries.iter().filter(|(_, last)| is_kept(last)).map(missing).sum()
    }

    /// Forgets producers that have written nothing for long. Depends on entries only, so that all
    /// replicas forget the same producers at the same entry.
    fn expire(&mut self) {
        if self.entries.is_multiple_of(EXPIRY_ENTRIES / 4) {
            self.last_entries.retain(|_, last| last.number + EXPIRY_ENTRIES > self.entries);
        }
    }

    /// Producer id, last sequence number and number of that entry.
    pub(crate) fn to_wire(&self) -> Vec<(u64, u64, u64)> {
        let producers = self.last_entries.iter();
        producers.map(|(id, last)| (*id, last.sequence, last.number)).collect()
    }

    /// The inverse of [`to_wire`](Self::to_wire).
    pub(crate) fn from_wire(producers: Vec<(u64, u64, u64)>) -> Self {
        // The entry that was recorded last is the last one of its producer.
        let entries = producers.iter().map(|(.., number)| *number).max().unwrap_or_default();
        let producer = |(id, sequence, number)| (id, LastEntry { sequence, number });
        Self { last_entries: producers.into_iter().map(producer).collect(), entries }
    }
}
