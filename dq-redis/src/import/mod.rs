//! Sources in Redis for [`Dq::import`](dq_core::Dq::import): a plain sorted set, and a delayed queue of
//! Redisson.
//!
//! The journal is a hash `dq_import:{name}` in the slot of the source; it does not exist outside of
//! imports. Each step is one script, so it is atomic, and as durable as the server's persistence.

mod journal;
mod redisson;
mod score;
mod zset;

pub use redisson::RedissonSource;
pub use zset::ZsetSource;
