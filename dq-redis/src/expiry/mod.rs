//! The `redis-expiry` backend: the native backend with a second source of hints, keys that expire
//! when a job is due. A *hint* wakes a runner, which then claims; hints may be lost.
//!
//! When a job gets a due time in the future, this backend sets an *expiry key*
//! `{prefix}:alarm:<due>:<queue>`, one per queue and due time. If the server's keyspace
//! notifications are on, it publishes an event when the key expires (`__keyevent@<db>__:expired`).
//! The event wakes the queue's listeners in this process.
//!
//! Jobs do not depend on it. Redis finds expired keys by sampling: with 100,000 keys with a time to
//! live and the default settings of Redis 7.0, nine of ten events were still missing 45 s after
//! they were due. An event is lost if no connection is subscribed, or if the server is down when it
//! is due. Notifications are off by default, and many hosted servers do not allow turning them on.
//! So the native backend's sorted set keeps the due times. The runner sleeps until the first one,
//! and claims without any hint once a second (the *sweep*).
//!
//! Beyond the native backend, it costs:
//! - a second round trip;
//! - one key for each due time ever given and still in the future (a job postponed every second for
//!   an hour leaves 3,600), and one event for each key to each connected process, which then claims
//!   once more;
//! - one more connection (in a cluster, one to each primary), which also receives the events for
//!   all other keys in the database.
//!
//! The native backend's own messages provide the same wake-up more cheaply. Choose this backend if
//! your other programs set expiry keys.

mod backend;
mod check;
mod config;
mod configure;
mod expiry_keys;
mod listener;
mod probe;
mod subscriptions;

pub use backend::RedisExpiryBackend;
pub use config::RedisExpiryConfig;
