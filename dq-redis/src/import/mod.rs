//! Sources in Redis for [`Dq::import`](dq_core::Dq::import): a plain sorted set, and a Redisson
//! delayed queue.
//!
//! An import lists entries and *takes* a batch: it moves them from the source to the *journal*.
//! [`dq_core::import`] explains the further steps. After a crash the next import continues with the
//! journal, so that no job is lost or stored twice.
//!
//! The journal is a hash `dq_import:{name}` (without braces if the name has a `{`) in the source's
//! slot. It maps the new job id to a stage (`T` taken, `S` stored in the target) and the packed
//! job. Each step on the source is one script or command, so it is atomic.

mod journal;
mod redisson;
mod score;
mod zset;

pub use redisson::RedissonSource;
pub use zset::ZsetSource;
