//! What nearly every user needs: `use dq::prelude::*;`.

pub use dq_core::{
    Cancelled, DelayHandler, Dq, DurationExt, FromJob, HandlerResult, JobContext, OnConflict,
    Outcome, QueueCode, RawPayload, Rescheduled, Scheduled, State, Timestamp, queue,
};
pub use dq_macros::{QueueCode, delay_handler};
