//! The `redis-expiry` backend: a layer over the native Redis backend that adds a second source of
//! hints, keys that expire when a job is due. A *hint* wakes a runner, which then claims; hints may
//! be lost.
//!
//! # What it adds
//!
//! The native backend keeps the jobs, under the same keys and with the same scripts: a `redis`
//! backend with the same prefix sees and runs the same jobs. For each job that is stored,
//! rescheduled, retried, snoozed or replayed with a due time in the future, this backend sets an
//! *expiry key*: an empty key `{prefix}:alarm:<due>:<queue>` that expires at the due time, one per
//! queue and due time. If the server's keyspace notifications are on, it publishes an event when
//! the key expires (`__keyevent@<db>__:expired`), which wakes the listeners of the queue in this
//! process.
//!
//! # Why jobs do not depend on it
//!
//! Expiry is not a clock. Redis finds expired keys by sampling, so among many other keys with a
//! time to live an event is late by seconds to minutes: with 100,000 of them and the default
//! settings of Redis 7.0, nine of ten events had not come 45 s after they were due. Events are not
//! stored: one that is published while no connection is subscribed, or due while the server is
//! down, is lost. Notifications are off by default, and many hosted servers do not allow turning
//! them on. Neither a replica nor an eviction publishes these events.
//!
//! So an expiry key is only a hint. Due times are kept in the sorted set of the native backend; the
//! runner sleeps until the first of them, by a timer, and sweeps: it claims without any hint once a
//! second. That is exact with notifications off, with the connection cut, after a restart, and
//! among any number of other programs' keys. An event that is lost or late, and a key that is left
//! over (that of a cancelled job is not removed), change nothing.
//!
//! # What it costs
//!
//! Beyond the native backend: a second round trip; one key for each due time that was ever given
//! and is still in the future (a job that is postponed every second for an hour leaves 3,600); one
//! event for each of these to each connected process; and one more connection (in a cluster, one to
//! each primary), which also receives the events of all other keys in the database. The gain is a
//! wake-up that the native backend's own messages provide more cheaply. This backend is for
//! applications that want the mechanism, or whose other programs set expiry keys: a program that
//! sets `{prefix}:alarm:<due>:<queue>` wakes the runners of the queue when the key expires.
//!
//! # Rights
//!
//! See the section about rights in the documentation of the crate.

mod backend;
mod check;
mod config;
mod configure;
mod expiry_keys;
mod listener;
mod monitor;
mod probe;
mod subscriptions;

pub use backend::RedisExpiryBackend;
pub use check::Notifications;
pub use config::RedisExpiryConfig;
