//! What nearly every user needs: `use dq::prelude::*;`.

pub use dq_core::{
    Cancelled, DelayHandler, Dq, DurationExt, HandlerResult, JobContext, OnConflict, Outcome,
    QueueCode, Rescheduled, Scheduled, State, Timestamp, queue,
};
pub use dq_macros::{QueueCode, delay_handler};
