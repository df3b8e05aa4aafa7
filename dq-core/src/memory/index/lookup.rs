//! From a key to the record that has it.

use std::fmt;
use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::Slot;

const SHARDS: usize = 256;

/// A hash table of places. The keys stay in the records; they are not stored twice.
///
/// Split into shards, so that growing moves a 256th of the entries at a time.
pub struct Lookup {
    shards: Box<[HashTable<Slot>]>,
    hasher: DefaultHashBuilder,
}

impl Default for Lookup {
    fn default() -> Self {
        Self {
            shards: std::iter::repeat_with(HashTable::new).take(SHARDS).collect(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl Lookup {
    /// The place whose record `is` the one with this key.
    #[must_use]
    pub fn find(&self, key: &impl Hash, is: impl Fn(Slot) -> bool) -> Option<Slot> {
        let hash = self.hasher.hash_one(key);
        self.shards[shard(hash)].find(hash, |slot| is(*slot)).copied()
    }

    /// Adds the place of a key that is not in the table yet. `rehash` gives the hash, by
    /// [`Self::hash`], of the key at a place.
    pub fn insert(&mut self, key: &impl Hash, slot: Slot, rehash: impl Fn(&Self, Slot) -> u64) {
        let hash = self.hash(key);
        // The shard is taken out for the moment so that `rehash` may look at the hasher.
        let mut table = std::mem::take(&mut self.shards[shard(hash)]);
        table.insert_unique(hash, slot, |slot| rehash(self, *slot));
        self.shards[shard(hash)] = table;
    }

    /// Forgets the place of a key.
    pub fn remove(&mut self, key: &impl Hash, slot: Slot) {
        let hash = self.hash(key);
        if let Ok(entry) = self.shards[shard(hash)].find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
    }

    /// The hash of a key in this table.
    #[must_use]
    pub fn hash(&self, key: &impl Hash) -> u64 {
        self.hasher.hash_one(key)
    }
}

/// The table itself uses the top 7 bits and the low ones; the shard takes bits from between.
const fn shard(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len: usize = self.shards.iter().map(HashTable::len).sum();
        f.debug_struct("Lookup").field("len", &len).finish_non_exhaustive()
    }
}
