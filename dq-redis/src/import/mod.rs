//! Sources of [`Dq::import`](dq_core::Dq::import) in Redis: a plain sorted set, and a delayed queue of
//! Redisson.
//!
//! The journal is a hash beside what is imported, `dq_import:{name}`; it is gone when the import is
//! complete. Every step on it is one script, so it takes effect as a whole or not at all, and is as
//! durable as the server's persistence makes it.

mod journal;
mod redisson;
mod score;
mod zset;

pub use redisson::RedissonSource;
pub use zset::ZsetSource;
