//! RabbitMQ backend of `dq`: delayed jobs on RabbitMQ 3.10 or newer, without plugins and without a
//! second store.
//!
//! ```no_run
//! # async fn f() -> dq_core::Result<()> {
//! use dq_core::config::Environment;
//! use dq_rabbit::{RabbitBackend, RabbitConfig};
//!
//! let config = RabbitConfig::new("amqp://jobs:secret@localhost/shop");
//! let backend = RabbitBackend::connect(&config, &Environment::default()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! **The log decides.** Every call (schedule, cancel, claim, settle …) is an entry in the log, a
//! sequence of streams. Each process reads them and applies all entries in the same order to a
//! replica, the state machine that the memory backend uses too ([`dq_core::machine`]). Applying a
//! call's entry gives its result, so all processes agree.
//!
//! **Messages deliver payloads.** A job that is due in more than a second also gets a message. It
//! waits in the *delay ladder*, about 290 queues with a constant time to live each, and reaches a
//! runner up to ten seconds before the job is due. If it is lost or late, any runner claims the job
//! some 250 ms after its due time, with the payload from the log.
//!
//! `docs/guide/rabbitmq.md` in the repository says how far each promise holds, and what the log
//! costs.
//!
//! # Broker settings
//!
//! In `advanced.config`, because `rabbitmq.conf` does not support these two:
//!
//! ```erlang
//! [{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000},
//!            {dead_letter_worker_consumer_prefetch, 512}]}].
//! ```
//!
//! With the defaults (180000 ms and 32), messages stall for three minutes after a broker restart,
//! and a queue moves at most 32 at the same time; those jobs run from the log.
//!
//! # Permissions
//!
//! All names begin with the prefix and `.v1.`. For the prefix `dq` in the virtual host `/`, a user
//! needs:
//!
//! ```text
//! rabbitmqctl set_permissions -p / jobs '^dq\.v1\.' '^dq\.v1\.' '^dq\.v1\.'
//! ```
//!
//! Once everything exists, and with [`TopologyMode::Passive`], the first pattern (configure) may be
//! `^dq\.v1\.log\.`, because the log's streams come and go. `check` then reports that it did not
//! test the ladder, for which `^dq\.v1\.canary\.` is enough. With `Passive`, a ready queue for each
//! job queue has to be declared elsewhere too; an error names the missing ones.

mod backend;
mod check;
mod chunks;
mod claim;
mod config;
mod connect;
mod engine;
mod entries;
mod error;
mod grant;
mod inspect;
mod log;
mod message;
mod operate;
mod payloads;
mod release;
mod renew;
mod runners;
mod schedule;
mod settle;
mod topology;

pub use backend::RabbitBackend;
pub use config::{LadderKind, QueueKind, RabbitConfig, TopologyMode};

#[cfg(test)]
#[path = "../tests/parts/mod.rs"]
mod parts;
