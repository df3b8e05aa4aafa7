//! The three structures that the memory backend is made of. None of their steps is longer than a
//! few microseconds amortised, or a few milliseconds at worst with ten million entries: nothing
//! here ever doubles one large table in one go.

mod arena;
mod due;
mod lookup;

pub use arena::{Arena, Slot};
pub use due::{DueIndex, Entry};
pub use lookup::Lookup;
