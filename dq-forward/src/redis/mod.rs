//! Forwards to Redis: each job is appended to a stream or a list.

mod list;
mod server;
mod stream;

pub use list::{RedisListForward, RedisListSettings};
pub(crate) use server::Server;
pub use stream::{RedisStreamForward, RedisStreamSettings};
