//! RabbitMQ backend of `dq`: delayed jobs on a RabbitMQ 3.10 or newer, without a plugin and without a
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
//! **The log decides.** Every call (schedule, cancel, claim, settle …) is an entry of one stream,
//! `dq.v1.log`. Each process reads the stream and applies all entries to a replica of the state machine
//! that is also the memory backend ([`dq_core::machine`]); the answer to a call is what the state says
//! at its place in the stream. All processes read the same entries in the same order, so what one is
//! answered holds for all. A process that is cut off cannot read its own claim back, so it starts
//! nothing that was cancelled meanwhile.
//!
//! **Carriers deliver.** A job that is due in more than a second also travels as a message, down a
//! ladder of about 290 queues with a constant time to live each: one for each value of each digit of the
//! delay, written as one writes time, from years down. None waits behind another that lives longer. 15
//! minutes or a day is one queue, any delay of less than a day two at most. It comes out early, by about ten
//! seconds at most (one, if the delay is less than a minute), and a runner holds it until the job is due. Up
//! to 16 jobs of one call that are due at nearly the same time share a message, and are separated where they
//! have to be. Carriers are acknowledged when their jobs are claimed, so the broker's limit
//! for acknowledgements (`consumer_timeout`) is none for handlers: their leases are in the log.
//!
//! **Nothing depends on a carrier.** A job whose message is lost, doubled, stalled or late is taken by any
//! runner 250 ms after its due time, with the payload from the log. A message that comes back for a job
//! that was cancelled, moved or done is dropped, or sent on.
//!
//! The broker keeps the last `log_size_mib` of the log. Before it could cut off what is live, and when
//! many messages have come since the last time, a process writes a copy of the state into it, payloads
//! included. Who starts later reads from the newest copy on. Calls wait if such a copy takes long, and
//! `schedule` answers [`Full`](dq_core::ErrorKind::Full) while one would take more than a fifth of the
//! log.
//!
//! # What is exact, and what is not
//!
//! - **Exact for all processes**: keys with all conflict policies, cancel, reschedule, pause, leases,
//!   fencing tokens, attempts, dead letters and their replay, counts and totals.
//! - **Never early, by the clock of the process that claims.** A broker has no clock to ask. Run NTP: a
//!   process whose clock is fast by a second claims a second early, and takes leases of others to have
//!   lapsed a second early.
//! - **Not exact**: the order of jobs that are due at the same time. Those whose messages are at hand go
//!   first.
//! - A crash of a process or `kill -9` of the broker loses nothing that was answered. **A power cut can**,
//!   where there is one node only: a stream is not synced to disk for each message, so the last moments
//!   of the log may be gone. On three nodes the log is replicated. If somebody deletes the log, jobs whose
//!   carriers still wait are taken into the new one as the carriers arrive.
//!
//! # What it costs
//!
//! Each process keeps what is known of all pending jobs of its prefix in memory, payloads aside, and reads
//! the log, from the newest copy on, when it starts. All calls under a prefix go through one stream; a
//! service of its own may have a prefix of its own.
//!
//! All processes of a prefix should run the same version: one that meets an entry which it does not know
//! stops with `Incompatible`, rather than to decide otherwise than the rest.
//!
//! # What the operator should set
//!
//! In `advanced.config`, since `rabbitmq.conf` does not know these two:
//!
//! ```erlang
//! [{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000},
//!            {dead_letter_worker_consumer_prefetch, 512}]}].
//! ```
//!
//! With the stock 180000 ms, messages that were about to move from queue to queue when the broker was
//! restarted stay there for three minutes; their jobs run from the log meanwhile, a quarter of a second
//! late. With the stock 32, at most so many messages of a queue move at once, which is too few when
//! thousands of jobs are due in a second.
//!
//! Have three nodes, and list them all in `url`. The feature flags `quorum_queue` and `stream_queue` must be
//! enabled; a broker without streams is refused with the remedy.
//!
//! # Rights
//!
//! All objects have names that begin with the prefix and `.v1.`, so a user of this backend needs, for
//! the prefix `dq` in the virtual host `/`:
//!
//! ```text
//! rabbitmqctl set_permissions -p / jobs '^dq\.v1\.' '^dq\.v1\.' '^dq\.v1\.'
//! ```
//!
//! The first pattern (configure) may be empty with [`TopologyMode::Passive`], which declares nothing;
//! `check` then says that it did not try the ladder, for which `^dq\.v1\.canary\.` is enough.
//! Who declares instead also declares a ready queue for each queue of jobs; an error names what is lacking.

#![forbid(unsafe_code)]

mod arrive;
mod backend;
mod carrier;
mod check;
mod claim;
mod config;
mod connect;
mod desk;
mod error;
mod inspect;
mod ladder;
mod log;
mod management;
mod names;
mod operate;
mod schedule;
mod settle;
mod topology;
mod whole;

pub use backend::RabbitBackend;
pub use config::{QueueKind, RabbitConfig, TopologyMode};

/// What the parts do with a real broker, which is more than the public API shows of them.
#[cfg(test)]
#[path = "../tests/parts/mod.rs"]
mod parts;
