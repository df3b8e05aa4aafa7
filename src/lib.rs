//! Delayed jobs, typed end to end.
pub use dq_core::*;
pub use dq_macros::{QueueCode, delay_handler};

#[doc(hidden)]
pub use dq_core::__private;
