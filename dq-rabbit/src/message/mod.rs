//! Job messages bring payloads to runners shortly before jobs are due.
//!
//! A message waits in the [delay ladder](crate::topology::ladder) and then goes to the *ready
//! queue* of its job queue. A runner keeps its jobs in the [payload
//! buffer](crate::payloads::buffer) and acknowledges it when they are claimed. Without its message,
//! a job runs with the payload from the log.

mod ack;
mod batch;
pub(crate) mod consumer;
pub(crate) mod deliveries;
mod job_message;
mod publisher;

pub(crate) use ack::{AckHandle, AckTracker};
pub(crate) use batch::BASE_SPREAD;
pub(crate) use job_message::{JobMessage, PublishedJob};
pub(crate) use publisher::Publisher;
