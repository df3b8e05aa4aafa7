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

mod arrive;
mod backend;
mod carrier;
mod check;
mod claim;
mod config;
mod connect;
mod desk;
mod error;
mod inspect;
mod ladder;
mod log;
mod management;
mod names;
mod operate;
mod schedule;
mod settle;
mod topology;

pub use backend::RabbitBackend;
pub use config::{QueueKind, RabbitConfig, TopologyMode};

/// What the parts do with a real broker, which is more than the public API shows of them.
#[cfg(test)]
#[path = "../tests/parts/mod.rs"]
mod parts;
