//! The `redisson` backend: jobs in the structures of Redisson's `RDelayedQueue`, shared with Java clients.

mod backend;
mod check;
pub(crate) mod codec;
mod config;
#[cfg(test)]
mod golden;
pub(crate) mod member;
#[cfg(test)]
mod member_reference;
mod target_watch;
mod transfer;

pub use backend::RedissonBackend;
pub use codec::Codec;
pub use config::{JavaVisibility, RedissonConfig};
pub use member::Format;
