//! Data structures under a [`Machine`](super::Machine).
//!
//! They bound the latency of single operations: none copies or sorts all entries at once. With ten
//! million entries, an operation takes a few microseconds amortised and a few milliseconds at
//! worst.

mod arena;
mod due;
mod hash;

pub use arena::{Arena, Slot};
pub use due::{DueIndex, TimeEntry};
pub use hash::HashIndex;
