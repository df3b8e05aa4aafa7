//! Deduplication of entries by producer id and sequence number.
//!
//! A producer is one open log; it numbers its entries from 1 without gaps, and may append an entry
//! several times.

use std::collections::HashMap;

/// A producer is forgotten after this many messages of the stream without an entry of its own.
const EXPIRY_MESSAGES: u64 = 1_000_000;

/// The last entry of each producer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Producers(HashMap<u64, LastEntry>);

#[derive(Debug, PartialEq, Eq)]
struct LastEntry {
    sequence: u64,
    offset: u64,
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
        self.0.get(&producer_id).map_or(0, |last| last.sequence)
    }

    /// Checks an entry at this offset, and records it if it is the producer's next.
    pub(crate) fn record(&mut self, producer_id: u64, sequence: u64, offset: u64) -> SequenceCheck {
        let last = self.last_sequence(producer_id);
        if sequence <= last {
            return SequenceCheck::Duplicate;
        }
        if sequence > last + 1 {
            return SequenceCheck::Gap { last };
        }
        self.0.insert(producer_id, LastEntry { sequence, offset });
        SequenceCheck::Next
    }

    /// Forgets producers that have written nothing for long. Depends on offsets only, so that all
    /// replicas forget the same producers at the same entry.
    pub(crate) fn expire(&mut self, offset: u64) {
        if offset.is_multiple_of(EXPIRY_MESSAGES / 4) {
            self.0.retain(|_, last| last.offset + EXPIRY_MESSAGES > offset);
        }
    }

    /// Producer id, last sequence number and offset of each.
    pub(crate) fn to_wire(&self) -> Vec<(u64, u64, u64)> {
        self.0.iter().map(|(id, last)| (*id, last.sequence, last.offset)).collect()
    }

    /// The inverse of [`to_wire`](Self::to_wire).
    pub(crate) fn from_wire(producers: Vec<(u64, u64, u64)>) -> Self {
        let producer = |(id, sequence, offset)| (id, LastEntry { sequence, offset });
        Self(producers.into_iter().map(producer).collect())
    }
}
