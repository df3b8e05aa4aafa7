//! Redis backends of `dq`: native, Redisson-compatible, and key expiry.
//!
//! # Rights
//!
//! The native backend needs these rights for the prefix `dq`. With another prefix, replace `dq` in both
//! patterns:
//!
//! ```text
//! ACL SETUSER jobs on >secret resetkeys ~{dq}:* resetchannels &{dq}:wake:* -@all \
//!     +eval +evalsha +info +time +sadd +smembers +subscribe +ping +publish \
//!     +zadd +zrem +zremrangebyrank +zrange +zrangebyscore +zcount +zcard +zscore \
//!     +hset +hsetnx +hget +hmget +hgetall +hdel +hstrlen +hincrby
//! ```
//!
//! A database other than 0 also needs `+select`, a cluster `+cluster|slots`. Redis checks the commands
//! inside scripts, too, so they are listed. A missing right is an error when connecting. Queues with
//! shards also need the pattern `~{dq#*}:*`; if it is missing, the first use of such a queue fails.
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

mod args;
mod backend;
mod batch;
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
mod record;
mod redisson;
mod renew;
mod reply;
mod resize;
mod rights;
mod route;
mod schedule;
mod script;
mod settle;
mod shards;
mod store;
mod wakeups;

pub use backend::RedisBackend;
pub use config::RedisConfig;
pub use expiry::{Notifications, RedisExpiryBackend, RedisExpiryConfig};
pub use import::{RedissonSource, ZsetSource};
pub use redisson::{Codec, Format, JavaVisibility, RedissonBackend, RedissonConfig};
