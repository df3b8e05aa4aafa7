//! The formats of Redisson's delayed queue: packed members and payload codecs.

mod backend;
mod check;
mod codec;
mod config;
mod fair;
#[cfg(test)]
mod golden;
pub(crate) mod member;
#[cfg(test)]
mod model;
mod peek;
mod relay;

pub use backend::RedissonBackend;
pub use codec::Codec;
pub use config::{Index, OrderList, RedissonConfig};
pub use member::Format;
