//! Redis backends of `dq`: native, Redisson-compatible, and key expiry.
//!
//! # Rights
//!
//! The native backend needs these, for the prefix `dq`; another prefix stands in both patterns:
//!
//! ```text
//! ACL SETUSER jobs on >secret resetkeys ~{dq}:* resetchannels &{dq}:wake:* -@all \
//!     +eval +evalsha +info +time +sadd +smembers +subscribe +ping +publish \
//!     +zadd +zrem +zrange +zrangebyscore +zcount +zcard +zscore \
//!     +hset +hsetnx +hget +hmget +hgetall +hdel +hstrlen +hincrby
//! ```
//!
//! With a database other than 0 it also needs `+select`, with a cluster `+cluster|slots`. Commands
//! inside scripts are checked like all others, which is why they are listed. Who lacks one of these
//! rights is told when connecting. Queues with shards also need the pattern `~{dq#*}:*`; who lacks that
//! is told when such a queue is first used.

mod adopt;
mod apart;
mod backend;
mod batch;
mod browse;
mod check;
mod claim;
mod config;
mod connect;
mod error;
mod expiry;
mod handle;
mod import;
mod inspect;
mod keys;
mod lanes;
mod layout;
mod leases;
mod operate;
mod record;
mod redisson;
mod replay;
mod reply;
mod schedule;
mod script;
mod seek;
mod settle;
mod shards;
mod store;
mod wake;

pub use backend::RedisBackend;
pub use config::RedisConfig;
pub use expiry::{Notifications, RedisExpiryBackend, RedisExpiryConfig};
pub use import::{RedissonSource, ZsetSource};
pub use redisson::{Codec, Format, Index, OrderList, RedissonBackend, RedissonConfig};
