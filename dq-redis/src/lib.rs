//! Redis backends for `dq`: native, Redisson-compatible, and key expiry.
//!
//! - `redis` ([`RedisBackend`]) stores jobs in `dq`'s own data structures.
//! - `redisson` ([`RedissonBackend`]) shares the delayed queues of Redisson's Java clients.
//! - `redis-expiry` ([`RedisExpiryBackend`]) adds wake-ups by key expiry events to the native
//!   backend.
//!
//! # Limits and older versions
//!
//! Versions without limits (`max_running`, `rate`) would exceed them, so they are refused in a
//! queue that has some: they can neither claim nor store jobs there, and finish what they run.
//! Versions without groups cannot read a queue with `group_max_running` either. Update all
//! processes, also those that only schedule jobs, before you set a limit.
//!
//! A server that loses its data loses limits, too. Runners restore their declared
//! limits within 15 seconds; limits set by operators are lost.
//!
//! # Rights
//!
//! Every backend works with `+@all -@admin -@dangerous`. The native backend needs only the
//! following rights. If your `prefix` is not `dq`, replace `dq` in both patterns:
//!
//! ```text
//! ACL SETUSER jobs on >secret resetkeys ~{dq}:* resetchannels &{dq}:wake:* -@all \
//!     +eval +evalsha +time +sadd +smembers +subscribe +publish \
//!     +zadd +zrem +zremrangebyrank +zrange +zrangebyscore +zcount +zlexcount +zcard +zscore \
//!     +hset +hsetnx +hget +hmget +hgetall +hscan +hdel +hstrlen +hincrby +pttl +pexpire +persist
//! ```
//!
//! A database other than 0 also needs `+select`, a cluster `+cluster|slots`. Redis also checks the
//! commands inside scripts.
//!
//! Connecting fails if a right is missing, with three exceptions. Without `+sadd`, `+smembers` or
//! the queue names, the first use fails. Without `+subscribe`, only timers find jobs, and `check`
//! reports it. Sharded queues also need the pattern `~{dq#*}:*`, here and with the key expiry
//! backend; without it, the first use of such a queue fails.
//!
//! Two commands are optional. With `+info`, `check` sees the settings by which a server loses jobs.
//! With `+hello`, connecting recognizes a Sentinel or a server that is too old.
//!
//! The Redisson backend needs the rights below. After Java's keys, list each queue name (here
//! `orders`) and the schedule queue `dq.schedules`, which every runner looks at, each with your
//! `name_prefix`. Names with a `{` need the same patterns:
//!
//! ```text
//! ACL SETUSER jobs on >secret resetkeys ~dq:* \
//!     ~redisson_delay_queue:* ~redisson_delay_queue_timeout:* ~orders ~dq.schedules \
//!     resetchannels &redisson_delay_queue_channel:* -@all \
//!     +eval +evalsha +time +sadd +smembers +subscribe +publish \
//!     +zadd +zrem +zremrangebyrank +zrange +zrangebyscore +zcount +zcard +zscore +zmscore +zscan \
//!     +hset +hsetnx +hget +hmget +hgetall +hdel +hstrlen +hincrby +hlen +hscan \
//!     +pttl +pexpire +llen +lrange +lrem +rpush +lpop +unlink +blmove
//! ```
//!
//! The key expiry backend needs the native rights and those below. Without the channel, only timers
//! find due jobs, and `check` reports it. The setting `configure` also needs `+config|get
//! +config|set`.
//!
//! ```text
//! ACL SETUSER jobs &__keyevent@*__:expired +set +touch
//! ```

mod args;
mod backend;
mod batch;
mod check;
mod claim;
mod config;
mod connect;
mod declarations;
mod error;
mod expiry;
mod flow;
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
mod probe;
mod queue_index;
mod record;
mod redisson;
mod renew;
mod reply;
mod resize;
mod rights;
mod runners;
mod schedule;
mod script;
mod settle;
mod shards;
mod store;
mod wakeups;

pub use config::RedisConfig;
pub use expiry::{RedisExpiryBackend, RedisExpiryConfig};
pub use import::{RedissonSource, ZsetSource};
pub use redisson::{Codec, Format, JavaVisibility, RedissonBackend, RedissonConfig};
pub use store::RedisBackend;
