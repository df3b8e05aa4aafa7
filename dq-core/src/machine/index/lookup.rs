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
    shards: Box<[HashTable<Place>]>,
    hasher: DefaultHashBuilder,
}

/// Half of the hash lies beside the slot, so that growing the table and passing over others need
/// not look at the records, which may be anywhere in memory.
#[derive(Clone, Copy)]
struct Place {
    hash: u32,
    slot: Slot,
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
    // Inlined, so that the cache misses of successive calls overlap.
    #[inline]
    #[must_use]
    pub fn find(&self, key: &impl Hash, is: impl Fn(Slot) -> bool) -> Option<Slot> {
        let hash = self.hash(key);
        let wide = spread(hash);
        self.shards[shard(wide)].find(wide, |p| p.hash == hash && is(p.slot)).map(|p| p.slot)
    }

    /// Adds the place of a key that is not in the table yet.
    pub fn insert(&mut self, key: &impl Hash, slot: Slot) {
        let hash = self.hash(key);
        let wide = spread(hash);
        self.shards[shard(wide)].insert_unique(wide, Place { hash, slot }, |p| spread(p.hash));
    }

    /// Forgets the place of a key.
    #[inline]
    pub fn remove(&mut self, key: &impl Hash, slot: Slot) {
        let wide = spread(self.hash(key));
        if let Ok(entry) = self.shards[shard(wide)].find_entry(wide, |p| p.slot == slot) {
            entry.remove();
        }
    }

    fn hash(&self, key: &impl Hash) -> u32 {
        (self.hasher.hash_one(key) >> 32) as u32
    }
}

/// The hash that the table is given: it takes its tags from the top and positions from the low end.
const fn spread(hash: u32) -> u64 {
    (hash as u64) << 32 | hash as u64
}

/// The shard takes bits from between.
const fn shard(wide: u64) -> usize {
    (wide >> 17) as usize % SHARDS
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len: usize = self.shards.iter().map(HashTable::len).sum();
        f.debug_struct("Lookup").field("len", &len).finish_non_exhaustive()
    }
}
