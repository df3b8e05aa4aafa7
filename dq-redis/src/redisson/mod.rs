//! The `redisson` backend: jobs in Redisson's `RDelayedQueue`, shared with Java clients.
//!
//! A Redisson delayed queue has three parts:
//! - a sorted set of waiting jobs by due time, `redisson_delay_queue_timeout:{queue}`. Its entries
//!   are called *members*: an id, a length and the payload in one string (see [`member`]);
//! - the *order list*, `redisson_delay_queue:{queue}`: the same members in offer order;
//! - the *destination list*, named like the queue: payloads of due jobs, which Java's `take()`
//!   pops.
//!
//! This backend is a layer over the native one, with scripts for Redisson's keys. A job waits as a
//! member, where Java sees it. From its first lease on it is a *native job* in the native backend's
//! keys. `scripts/redisson/keys.lua` describes all keys.

mod backend;
mod check;
pub(crate) mod codec;
mod config;
mod destination_watch;
#[cfg(test)]
mod golden;
pub(crate) mod layout;
pub(crate) mod member;
#[cfg(test)]
mod member_test;
mod scripts;
mod transfer;

pub use backend::RedissonBackend;
pub use codec::Codec;
pub use config::{JavaVisibility, RedissonConfig};
pub use member::Format;
