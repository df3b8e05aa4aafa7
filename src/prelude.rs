//! The names that most applications use: `use dq::prelude::*;`.

pub use dq_core::config::QueueSettings;
pub use dq_core::{
    Cancelled, DelayHandler, Dq, DurationExt, FromJob, HandlerResult, JobContext, JobId, JobState,
    JobView, OnConflict, OnRunning, Outcome, Queue, QueueCode, RawPayload, Rescheduled, Scheduled,
    State, Timestamp, queue,
};
pub use dq_macros::{QueueCode, delay_handler};
