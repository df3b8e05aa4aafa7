//! A hash index from keys to records.

use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::arena::Slot;

/// Number of independent tables.
const SHARDS: usize = 256;

/// A hash table of slots. The keys stay in the records.
///
/// Its 256 shards grow one at a time, so that growing moves few entries at once.
#[derive(Debug)]
pub struct HashIndex {
    shards: Box<[HashTable<HashedSlot>]>,
    hasher: DefaultHashBuilder,
}

/// A slot with half of its key's hash, so that growing and probing do not read the records, which
/// are scattered in memory.
#[derive(Debug, Clone, Copy)]
struct HashedSlot {
    hash: u32,
    slot: Slot,
}

impl Default for HashIndex {
    fn default() -> Self {
        Self {
            shards: std::iter::repeat_with(HashTable::new).take(SHARDS).collect(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl HashIndex {
    /// Finds a key's slot. `matches` compares the record in a slot with the key.
    // Inlined, so that the cache misses of successive calls overlap.
    #[inline]
    pub fn find(&self, key: &impl Hash, matches: impl Fn(Slot) -> bool) -> Option<Slot> {
        let hash = self.hash(key);
        let wide = spread(hash);
        self.shards[shard(wide)]
            .find(wide, |entry| entry.hash == hash && matches(entry.slot))
            .map(|entry| entry.slot)
    }

    /// Adds a key's slot. The key must not be in the index.
    pub fn insert(&mut self, key: &impl Hash, slot: Slot) {
        let hash = self.hash(key);
        let wide = spread(hash);
        self.shards[shard(wide)]
            .insert_unique(wide, HashedSlot { hash, slot }, |entry| spread(entry.hash));
    }

    /// Removes a key's slot.
    #[inline]
    pub fn remove(&mut self, key: &impl Hash, slot: Slot) {
        let wide = spread(self.hash(key));
        if let Ok(entry) = self.shards[shard(wide)].find_entry(wide, |entry| entry.slot == slot) {
            entry.remove();
        }
    }

    fn hash(&self, key: &impl Hash) -> u32 {
        (self.hasher.hash_one(key) >> 32) as u32
    }
}

/// Widens a hash to 64 bits by using it for both halves. [`HashTable`] takes an entry's tag from
/// the highest seven bits and its position from the lowest.
const fn spread(hash: u32) -> u64 {
    (hash as u64) << 32 | hash as u64
}

/// Takes bits 17 to 24: below the tag, and above the position up to 2¹⁷ places per shard.
const fn shard(wide: u64) -> usize {
    (wide >> 17) as usize % SHARDS
}
