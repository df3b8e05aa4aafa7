//! Messages that bring jobs with their payloads through the delay ladder to consumers.
//!
//! Messages decide nothing: the [log](crate::log) does. A lost message is replaced by the payload in the
//! log, a duplicate or a message for ended jobs is dropped, and jobs that arrive too early are published
//! again.

mod ack;
mod batch;
mod job_message;
mod prefetch;
mod publisher;

pub(crate) use ack::{AckHandle, AckTracker};
pub(crate) use batch::MAX_SPREAD;
pub(crate) use job_message::{JobMessage, MessageJob};
pub(crate) use prefetch::{PrefetchBuffer, Prefetched};
pub(crate) use publisher::Publisher;
