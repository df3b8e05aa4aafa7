//! RabbitMQ backend of `dq`.
//!
//! # Rights
//!
//! All objects have names that begin with the prefix and `.v1.`, so a user of this backend needs, for
//! the prefix `dq` in the virtual host `/`:
//!
//! ```text
//! rabbitmqctl set_permissions -p / jobs '^dq\.v1\.' '^dq\.v1\.' '^dq\.v1\.'
//! ```
//!
//! The first pattern (configure) may be empty with [`TopologyMode::Passive`], which declares nothing.

#![forbid(unsafe_code)]
// Until the backend itself stands, nothing uses what it stands on.
#![allow(dead_code)]

mod backend;
mod config;
mod connect;
mod error;
mod ladder;
mod names;
mod topology;

pub use backend::RabbitBackend;
pub use config::{QueueKind, RabbitConfig, TopologyMode};

/// What the parts do with a real broker, which is more than the public API shows of them.
#[cfg(test)]
#[path = "../tests/parts/mod.rs"]
mod parts;
