//! An arena: records with stable slot numbers.

/// A record's number in an [`Arena`].
pub type Slot = u32;

/// Records in a chunk.
const CHUNK: usize = 1_024;

/// Records in chunks that never move, so that growing copies nothing.
#[derive(Debug)]
pub struct Arena<T> {
    chunks: Vec<Vec<Cell<T>>>,
    /// The first of a linked list of free cells.
    free: Option<Slot>,
    len: usize,
}

#[derive(Debug)]
enum Cell<T> {
    Used(T),
    /// The next free cell.
    Free(Option<Slot>),
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), free: None, len: 0 }
    }
}

impl<T> Arena<T> {
    /// Adds a record and returns its slot.
    ///
    /// # Panics
    /// If the arena has 2³² records.
    pub fn insert(&mut self, record: T) -> Slot {
        self.len += 1;
        if let Some(slot) = self.free {
            let cell = self.cell_mut(slot);
            if let Cell::Free(next) = std::mem::replace(cell, Cell::Used(record)) {
                self.free = next;
            }
            return slot;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let full = (self.chunks.len() - 1) * CHUNK;
        let chunk = &mut self.chunks[full / CHUNK];
        chunk.push(Cell::Used(record));
        Slot::try_from(full + chunk.len() - 1).expect("fewer than 2^32 records fit in memory")
    }

    /// Removes and returns a record.
    ///
    /// # Panics
    /// If the slot has none.
    pub fn remove(&mut self, slot: Slot) -> T {
        let free = self.free.replace(slot);
        let Cell::Used(record) = std::mem::replace(self.cell_mut(slot), Cell::Free(free)) else {
            panic!("slot {slot} has no record");
        };
        self.len -= 1;
        record
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over all records, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries().map(|(_, record)| record)
    }

    /// Iterates over all records with their slots, in no particular order.
    pub fn entries(&self) -> impl Iterator<Item = (Slot, &T)> {
        (0..).zip(self.chunks.iter().flatten()).filter_map(|(slot, cell)| match cell {
            Cell::Used(record) => Some((slot, record)),
            Cell::Free(_) => None,
        })
    }

    fn cell_mut(&mut self, slot: Slot) -> &mut Cell<T> {
        &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }
}

impl<T> std::ops::Index<Slot> for Arena<T> {
    type Output = T;

    fn index(&self, slot: Slot) -> &T {
        match &self.chunks[slot as usize / CHUNK][slot as usize % CHUNK] {
            Cell::Used(record) => record,
            Cell::Free(_) => panic!("slot {slot} has no record"),
        }
    }
}

impl<T> std::ops::IndexMut<Slot> for Arena<T> {
    fn index_mut(&mut self, slot: Slot) -> &mut T {
        match self.cell_mut(slot) {
            Cell::Used(record) => record,
            Cell::Free(_) => panic!("slot {slot} has no record"),
        }
    }
}
