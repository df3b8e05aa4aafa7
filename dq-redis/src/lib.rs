//! Redis backends of `dq`: native, Redisson-compatible, and key expiry.
//!
//! # Rights
//!
//! The native backend needs these, for the prefix `dq`; another prefix stands in both patterns:
//!
//! ```text
//! ACL SETUSER jobs on >secret resetkeys ~{dq}:* resetchannels &{dq}:wake:* -@all \
//!     +eval +evalsha +info +time +sadd +smembers +subscribe +ping +publish \
//!     +zadd +zrem +zremrangebyrank +zrange +zrangebyscore +zcount +zcard +zscore \
//!     +hset +hsetnx +hget +hmget +hgetall +hdel +hstrlen +hincrby
//! ```
//!
//! With a database other than 0 it also needs `+select`, with a cluster `+cluster|slots`. Commands
//! inside scripts are checked like all others, which is why they are listed. Who lacks one of these
//! rights is told when connecting. Queues with shards also need the pattern `~{dq#*}:*`; who lacks that
//! is told when such a queue is first used.
//!
//! The Redisson backend needs these. After Java's keys come the names of the queues (here `orders`),
//! each with the `name_prefix` if there is one; names with a `{` of their own need the same patterns:
//!
//! ```text
//! ACL SETUSER jobs on >secret resetkeys ~dq:* \
//!     ~redisson_delay_queue:* ~redisson_delay_queue_timeout:* ~orders \
//!     resetchannels &redisson_delay_queue_channel:* -@all \
//!     +eval +evalsha +info +time +sadd +smembers +subscribe +ping +publish \
//!     +zadd +zrem +zremrangebyrank +zrange +zrangebyscore +zcount +zcard +zscore +zmscore +zscan \
//!     +hset +hsetnx +hget +hmget +hgetall +hdel +hstrlen +hincrby +hlen +hscan \
//!     +llen +lrange +lrem +rpush +lpop +unlink +blmove
//! ```
//!
//! The key expiry backend needs those of the native one, and `SET`, `TOUCH` and the channel where the
//! server says which keys expire. With `configure` it also needs `+config|get +config|set`. Without
//! the channel jobs run by timers alone, as `check` then tells:
//!
//! ```text
//! ACL SETUSER jobs on >secret resetkeys ~{dq}:* \
//!     resetchannels &{dq}:wake:* &__keyevent@*__:expired -@all \
//!     +eval +evalsha +info +time +sadd +smembers +subscribe +ping +publish \
//!     +zadd +zrem +zremrangebyrank +zrange +zrangebyscore +zcount +zcard +zscore \
//!     +hset +hsetnx +hget +hmget +hgetall +hdel +hstrlen +hincrby +set +touch
//! ```

mod backend;
mod batch;
mod browse;
mod check;
mod claim;
mod clock;
mod config;
mod connect;
mod error;
mod expiry;
mod handle;
mod import;
mod inspect;
mod keys;
mod operate;
mod packing;
mod record;
mod redisson;
mod reply;
mod rights;
mod schedule;
mod script;
mod settle;
mod shards;
mod store;
mod wake;

pub use backend::RedisBackend;
pub use config::RedisConfig;
pub use expiry::{Notifications, RedisExpiryBackend, RedisExpiryConfig};
pub use import::{RedissonSource, ZsetSource};
pub use redisson::{Codec, Format, JavaVisibility, RedissonBackend, RedissonConfig};
