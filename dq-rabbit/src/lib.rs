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
//! sequence of streams (`dq.v1.log.0` and so on). Each process reads them and applies all entries
//! in the same order to a replica, the state machine that the memory backend uses too
//! ([`dq_core::machine`]). Applying a call's entry gives its result, so all processes agree.
//!
//! **Messages deliver payloads.** A job that is due in more than a second also gets a message,
//! which waits in the *delay ladder*: about 290 queues with a constant time to live, so no message
//! waits behind one that expires later. It reaches the job queue's *ready queue* up to ten seconds
//! early, and the runner that consumes it keeps its jobs until they are due. The runner
//! acknowledges it when it claims the jobs, so the broker's `consumer_timeout` does not limit
//! handlers.
//!
//! **Nothing depends on messages.** If a job's message is lost or late, any runner claims the job
//! some 250 ms after its due time, with the payload from the log. Runners then read ahead until
//! messages arrive again. `schedule` succeeds once the log has the job, even if no queue takes its
//! message. Missing queues are declared again in the background.
//!
//! **The log goes on from stream to stream.** Its streams, the *generations*, have no limits on
//! size or age. After an eighth of `log_size_mib` or many entries, a process closes the generation
//! and writes a snapshot, with payloads, into the next one. Earlier generations are deleted two
//! minutes later. Each replica knows a snapshot's size to the byte. Beyond a fifth of
//! `log_size_mib`, the log refuses more jobs from all processes alike, and `schedule` fails with
//! [`Full`](dq_core::ErrorKind::Full). Calls that end jobs always pass.
//!
//! # Guarantees
//!
//! - **Exact across all processes**: keys with all conflict policies, cancel, reschedule, pause,
//!   leases, fencing tokens, attempts, dead jobs and their replay, counts and totals.
//! - **Never early, by the claiming process's clock.** A broker has no clock to query. Use NTP;
//!   `check` reports the skew between processes.
//! - **Leases do not depend on the time of day.** Each process measures them by elapsed time from
//!   when it has read them. After its start, it waits for a lease's whole length.
//! - **Not exact**: the order among jobs that are due at the same time. A process claims jobs first
//!   that it has the payload for.
//! - A crash or `kill -9` loses nothing that was confirmed, in a process or in the broker. **A power
//!   failure can**, if the broker is a single node: RabbitMQ does not sync a stream for each
//!   message, so the log's last moments may be lost. On three nodes the log is replicated. If the
//!   log is deleted, jobs with messages in the ladder are added to the new log as the messages
//!   arrive.
//!
//! Several versions can share a prefix. A process stops with `Incompatible` at a newer version's
//! entry that would make its replica differ from the others.
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
