//! Tests the `redisson` backend with real Redisson clients in several versions on the same queues.
//! A *peer* is such a client, a Java program in its own process.

mod bridge;
mod golden;
mod java_alone;
mod peer;
mod rust;
mod shared_queue;
