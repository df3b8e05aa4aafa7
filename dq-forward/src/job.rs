//! The parts of a job that forwards write in the same way.

use dq_core::{Headers, JobContext};

/// Returns the payload's content type; JSON unless a header says otherwise.
pub(crate) fn content_type(job: &JobContext) -> &str {
    job.headers().get(Headers::CONTENT_TYPE).unwrap_or("application/json")
}

#[cfg(any(feature = "amqp", feature = "redis"))]
pub(crate) fn other_headers(job: &JobContext) -> impl Iterator<Item = (&str, &str)> {
    job.headers().iter().filter(|(name, _)| *name != Headers::CONTENT_TYPE)
}
