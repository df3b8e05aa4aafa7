//! The data of a job: identity, queue, times, payload, headers, and their limits.

mod backoff;
pub(crate) mod codec;
mod conflict;
mod dead;
mod headers;
mod job;
mod key;
mod limits;
mod name;
mod queue;
mod timestamp;

pub use backoff::Backoff;
pub use conflict::OnConflict;
pub use dead::{DeadKind, DeadReason};
pub use headers::Headers;
pub use job::{Job, JobId, JobRef, JobState, JobView, NewJob, Target};
pub use key::JobKey;
pub use limits::Limits;
pub use queue::{Queue, QueueCode, QueueName};
pub use timestamp::{Due, DurationExt, IntoDue, Timestamp};
