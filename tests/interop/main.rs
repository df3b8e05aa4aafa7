//! Tests against real Redisson clients of several versions on the same queues.

mod bridge;
mod golden;
mod java_alone;
mod peer;
mod rust;
mod shared_queue;
