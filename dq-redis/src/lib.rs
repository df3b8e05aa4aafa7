//! Redis backends of `dq`: native, Redisson-compatible, and key expiry.
//!
//! - `redis` ([`RedisBackend`]) stores jobs in `dq`'s own data structures.
//! - `redisson` ([`RedissonBackend`]) shares the delayed queues of Redisson's Java clients.
//! - `redis-expiry` ([`RedisExpiryBackend`]) is the native one with key expiry events as further
//!   wake-ups.
//!
//! # Rights
//!
//! `+@all -@admin -@dangerous` is enough for every backend. The native backend needs no more than these
//! rights of an ACL user for the prefix `dq`. With another prefix, replace `dq` in both patterns:
//!
//! ```text
//! ACL SETUSER jobs on >secret resetkeys ~{dq}:* resetchannels &{dq}:wake:* -@all \
//!     +eval +evalsha +time +sadd +smembers +subscribe +publish \
//!     +zadd +zrem +zremrangebyrank +zrange +zrangebyscore +zcount +zcard +zscore \
//!     +hset +hsetnx +hget +hmget +hgetall +hdel +hstrlen +hincrby +pttl +pexpire
//! ```
//!
//! A database other than 0 also needs `+select`, a cluster `+cluster|slots`. The list includes the
//! commands inside scripts, since Redis checks those too. A missing right is an error when
//! connecting, except `+sadd` and `+smembers`, and the names of queues, without which the first use
//! fails, and `+subscribe`, without which jobs are found by timers alone and `check` says so. Queues
//! with shards also need the pattern `~{dq#*}:*`, here and with the key expiry backend; if it is
//! missing, the first use of such a queue fails.
//!
//! Two commands are optional: `+info` shows `check` the settings by which a server loses jobs, and
//! `+hello` lets connecting refuse a server that is too old or a Sentinel with an error that says so.
//!
//! The Redisson backend needs the following. List the name of each queue (here `orders`) after
//! Java's keys, and that of the schedules, `dq.tickers`, which every runner looks at, each with the
//! `name_prefix` if there is one. Names that contain a `{` need the same patterns:
//!
//! ```text
//! ACL SETUSER jobs on >secret resetkeys ~dq:* \
//!     ~redisson_delay_queue:* ~redisson_delay_queue_timeout:* ~orders ~dq.tickers \
//!     resetchannels &redisson_delay_queue_channel:* -@all \
//!     +eval +evalsha +time +sadd +smembers +subscribe +publish \
//!     +zadd +zrem +zremrangebyrank +zrange +zrangebyscore +zcount +zcard +zscore +zmscore +zscan \
//!     +hset +hsetnx +hget +hmget +hgetall +hdel +hstrlen +hincrby +hlen +hscan \
//!     +pttl +pexpire +llen +lrange +lrem +rpush +lpop +unlink +blmove
//! ```
//!
//! The key expiry backend needs those of the native one, `SET`, `TOUCH`, and the channel of key
//! expiry events. With the setting `configure` it also needs `+config|get +config|set`. Without the
//! channel it finds due jobs by timers alone, and `check` reports that:
//!
//! ```text
//! ACL SETUSER jobs on >secret resetkeys ~{dq}:* \
//!     resetchannels &{dq}:wake:* &__keyevent@*__:expired -@all \
//!     +eval +evalsha +time +sadd +smembers +subscribe +publish \
//!     +zadd +zrem +zremrangebyrank +zrange +zrangebyscore +zcount +zcard +zscore \
//!     +hset +hsetnx +hget +hmget +hgetall +hdel +hstrlen +hincrby +pttl +pexpire \
//!     +set +touch
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
mod format;
#[cfg(test)]
mod fuzz;
mod handle;
mod import;
mod inspect;
mod key_layout;
mod keys;
mod library;
mod operate;
mod pins;
mod queue_index;
mod record;
mod redisson;
mod renew;
mod reply;
mod resize;
mod rights;
mod route;
mod runners;
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
