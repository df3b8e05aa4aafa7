//! Sources in Redis for [`Dq::import`](dq_core::Dq::import): a plain sorted set, and a delayed
//! queue of Redisson.
//!
//! An import lists entries, *takes* a batch of them (moves them from the source to the *journal*),
//! stores them in the target, parked; marks them as stored; gives them their due times; and removes
//! them from the journal. [`dq_core::import`] says why in this order. After a crash the next import
//! continues with the journal, so that no job is lost or stored twice.
//!
//! The journal is a hash `dq_import:{name}` (without the braces if the name has a `{`) in the slot of
//! the source, from the new job id to its stage (`T` taken, `S` stored in the target) and the packed
//! job. It is empty, and so does not exist, between imports. Each step on the source is one script or
//! command, so it is atomic, and as durable as the server's persistence.

mod journal;
mod redisson;
mod score;
mod zset;

pub use redisson::RedissonSource;
pub use zset::ZsetSource;
