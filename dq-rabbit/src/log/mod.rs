//! The log: one RabbitMQ stream that holds every call, in the same order for all processes.
//!
//! A stream is an append-only queue that any number of consumers can read from any *offset*, the
//! number of a message. The broker deletes its oldest messages when it exceeds its maximum size.
//!
//! A call takes effect when it is read back: it is appended as an entry, read from the stream, and
//! applied to the replica; its reply is the result of applying the entry. All processes apply the
//! same entries in the same order, so their replicas are equal and agree on every reply. Only the
//! log decides about jobs. Job messages (see [`message`](crate::message)) deliver payloads to the
//! processes that need them, and may be lost, duplicated or late.
//!
//! Terms:
//!
//! - *entry*: a command with the id of its producer, a sequence number and the producer's time. One
//!   message of the stream holds a batch of entries.
//! - *producer*: one open log. Its id is random. Entries of a producer are numbered from 1; an
//!   entry that is read a second time is a *duplicate* and is ignored. After a missing number there
//!   is a *gap*: the producer's later entries have no effect until it has sent the missing ones
//!   again.
//! - *replica*: the state of all jobs (a [`Machine`](dq_core::machine::Machine)) in the memory of
//!   each process, without payloads. It holds the [`LogPosition`] of each payload instead.
//! - *barrier*: an entry that changes nothing. Once it is read back, the replica contains all
//!   changes that were made before the call, so reads (`get`, `stats`, `browse`) append one.
//! - *snapshot*: the whole state, written into the log, so that the entries before it are not
//!   needed any more and the broker may delete them.
//! - *log id*: tells this log from an earlier one with the same name that was deleted.
//!
//! Modules, each of which uses only those above it:
//!
//! - `wire`: entries as bytes; `command`: commands with the types of their replies;
//! - `position`, `producers`, `snapshot`, `replica`: the state that results from the entries;
//! - `retention`, `cache`, `pending`, `shared`, `call`: what the tasks of an open log share;
//! - `stream`: consumers; `fetch`: payloads; `start`: where to start reading;
//! - `append`, `tail`, `compaction`: the three tasks of an open log, which append entries, read and
//!   apply them, and write snapshots.

mod append;
mod cache;
mod call;
pub(crate) mod command;
mod compaction;
mod fetch;
mod pending;
mod position;
mod producers;
mod replica;
mod retention;
mod shared;
mod snapshot;
mod start;
mod stream;
mod tail;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dq_core::config::Environment;
use dq_core::{Clock, Listeners, Result, Timestamp};
use tokio_util::task::TaskTracker;

use self::command::{Barrier, TypedCommand};
use self::fetch::Payloads;
use self::shared::LogShared;
use crate::connect::AmqpConnection;
use crate::error::LostReply;
use crate::topology::Topology;

pub(crate) use self::pending::AppliedAt;
pub(crate) use self::position::LogPosition;
pub(crate) use self::replica::{CLAIM_AHEAD, Replica};
pub(crate) use self::shared::LogSettings;

/// An open log.
pub(crate) struct Log {
    shared: Arc<LogShared>,
    tasks: TaskTracker,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

impl Log {
    /// Starts the tasks of the log, and waits until the state is known.
    pub(crate) async fn open(
        settings: LogSettings,
        environment: &Environment,
        topology: Arc<Topology>,
        publish: Arc<AmqpConnection>,
        consume: Arc<AmqpConnection>,
        listeners: Arc<Listeners>,
    ) -> Result<Self> {
        let shared = LogShared::new(settings, environment, topology, publish, consume, listeners);
        let shared = Arc::new(shared);
        let tasks = TaskTracker::new();
        let stop = || shared.stop.clone();
        tasks.spawn(stop().run_until_cancelled_owned(tail::run(Arc::clone(&shared))));
        tasks.spawn(stop().run_until_cancelled_owned(append::run(Arc::clone(&shared))));
        tasks.spawn(stop().run_until_cancelled_owned(compaction::run(Arc::clone(&shared))));
        let log = Self { shared, tasks };
        log.call("connect", LostReply::Unavailable, Barrier, |_, (), _| ()).await?;
        Ok(log)
    }

    /// The time of this process's clock, which its entries carry.
    pub(crate) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.shared.clock
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Appends a command and waits until it has been applied. `read` makes the result from the
    /// reply and from the state right after the command.
    ///
    /// # Errors
    /// `Closed` after [`close`](Self::close); `Unavailable` if the broker does not respond; `Full`
    /// if it has a resource alarm; `OutcomeUnknown` instead of these two if the command may take
    /// effect all the same and `lost_reply` says so; `Incompatible` if the log holds an entry that
    /// this version cannot decode.
    ///
    /// # Cancellation safety
    /// A command whose call is dropped may still take effect.
    pub(crate) async fn call<C: TypedCommand, T: Send + 'static>(
        &self,
        operation: &'static str,
        lost_reply: LostReply,
        command: C,
        read: impl FnOnce(&mut Replica, C::Reply, AppliedAt) -> T + Send + 'static,
    ) -> Result<T> {
        self.shared.call(operation, lost_reply, command, read).await
    }

    /// Fetches the payloads and headers at these positions. Those that the broker has deleted are
    /// left out.
    pub(crate) async fn fetch(&self, positions: Vec<LogPosition>) -> Result<Payloads> {
        fetch::fetch(&self.shared, positions).await
    }

    /// Whether the jobs take more than a fifth of the log, so that `schedule` must be refused.
    pub(crate) fn is_full(&self) -> bool {
        let mut state = self.shared.state();
        let jobs = state.replica.machine().len();
        let is_full = state.retention.is_full();
        // The size is that of the last snapshot. If many jobs have ended since, another snapshot is
        // written, which may end the refusal.
        if is_full && state.retention.has_shrunk_to(jobs, self.shared.clock.now()) {
            self.shared.snapshot_due.notify_one();
        }
        is_full
    }

    /// Reads the state as of the last applied entry, without a call.
    pub(crate) fn peek<T>(&self, read: impl FnOnce(&mut Replica) -> T) -> T {
        read(&mut self.shared.state().replica)
    }

    /// Stops all tasks. Pending calls fail with `Closed`.
    pub(crate) async fn close(&self) {
        {
            let mut state = self.shared.state();
            self.shared.closed.store(true, Ordering::Release);
            state.unsent_calls.clear();
            state.sent_calls.clear();
        }
        self.shared.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}
