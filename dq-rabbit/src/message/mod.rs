//! Job messages, which deliver jobs with their payloads to runners shortly before the jobs are due.
//!
//! A job message waits in the [delay ladder](crate::ladder), a chain of queues with a time to live,
//! and then goes to the *ready queue* of its job queue, from which runners consume. A runner keeps
//! the jobs in its [payload buffer](crate::buffer) until they are due, and acknowledges the message when they are
//! claimed.
//!
//! Job messages decide nothing: the [log](crate::log) does. If one is lost, its jobs run with the
//! payload from the log; a duplicate, or a message for jobs that have ended, is dropped; jobs that
//! arrive too early are published again.
//!
//! Modules: `job_message` is the format, `batch` groups jobs into messages, `publisher` sends them,
//! `ack` acknowledges deliveries.

mod ack;
mod batch;
mod job_message;
mod publisher;

pub(crate) use ack::{AckHandle, AckTracker};
pub(crate) use batch::BASE_SPREAD;
pub(crate) use job_message::{JobMessage, PublishedJob};
pub(crate) use publisher::Publisher;
