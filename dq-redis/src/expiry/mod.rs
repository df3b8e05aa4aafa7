//! The native backend with a second source of hints: keys that expire when a job is due.
//!
//! # What it adds
//!
//! Jobs are kept by the native backend, under the same keys and by the same scripts: a `redis`
//! backend with the same prefix sees and runs the same jobs. Beside each stored, moved, retried,
//! snoozed or replayed job that is due in the future stands an *alarm*, an empty key
//! `{prefix}:alarm:<due>:<queue>` that expires when the job is due, one per queue and due time. Where
//! the server's keyspace notifications are on, it says so (`__keyevent@<db>__:expired`), and who
//! listens to that queue in this process is woken.
//!
//! # Why jobs do not depend on it
//!
//! Expiry is not a clock. Redis looks for expired keys by samples, so among many other keys with a
//! time to live an event is late by seconds to minutes: with 100,000 of them and the settings that
//! Redis 7.0 comes with, nine of ten events had not come 45 s after they were due. An event has no
//! memory: what expires while nobody is subscribed, or while the server is down, is never heard of.
//! Notifications are off unless somebody turns them on, and many hosted servers do not let you.
//! Neither a replica nor an eviction raises such an event.
//!
//! So an alarm is a hint and nothing else. What is due stands in the sorted set of the native
//! backend; the runner sleeps until its head is due, by a timer, and sweeps. That is exact with
//! notifications off, with the connection cut, after a restart, and among any number of foreign keys.
//! An alarm that is lost, late or left over (a cancelled job's is not removed) changes nothing.
//!
//! # What it costs
//!
//! Over the native backend: a second round trip, one key per due time that was ever given and is still
//! ahead (a key that is put off every second for an hour leaves 3,600), one event for each of these to
//! each process that is connected, and one more connection (in a cluster, to each primary), which
//! also hears of every other key of the database that expires. What it brings is a wake-up that the
//! native backend's own messages give more cheaply. It is for those who want the mechanism, or whose
//! other programs set alarms too: whoever sets `{prefix}:alarm:<due>:<queue>` wakes the runners of
//! the queue when the key expires.
//!
//! # Rights
//!
//! See the documentation of the crate.

mod alarm;
mod backend;
mod canary;
mod check;
mod config;
mod configure;
mod ears;
mod nodes;
mod watch;

pub use backend::RedisExpiryBackend;
pub use check::Notifications;
pub use config::RedisExpiryConfig;
