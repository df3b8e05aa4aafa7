//! The state machine of the contract: every call as a function of the state and a time, without a
//! clock, a lock or a store of its own.
//!
//! The memory backend is this behind a mutex. A backend whose store is a log of calls applies them
//! to a machine in each process: the same calls at the same times make the same states.

mod calls;
mod copy;
pub mod index;
mod listing;
mod near;
mod store;
mod verdict;

pub use calls::{Machine, Operate};
pub use copy::{MachineCopy, Standing, Whereabouts};
pub use near::Nearness;
