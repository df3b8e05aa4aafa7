//! From code to function: handlers, what they take, what they return.

mod outcome;
mod retry;

pub use outcome::{
    DeadKind, DeadReason, HandlerResult, IntoOutcome, JobError, JobResult, Outcome,
};
pub use retry::Backoff;
