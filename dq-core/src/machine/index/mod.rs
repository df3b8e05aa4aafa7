//! Data structures under a [`Machine`](super::Machine).
//!
//! No operation copies or sorts all entries at once. With ten million entries, one takes a few
//! microseconds amortised and a few milliseconds at worst.

mod arena;
mod due;
mod hash;

pub use arena::{Arena, Slot};
pub use due::{DueIndex, Key, MIN_KEY, TimeEntry};
pub use hash::HashIndex;
