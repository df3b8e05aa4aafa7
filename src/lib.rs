//! Delayed jobs, typed end to end.
pub use dq_core::*;
