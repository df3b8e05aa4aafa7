//! The log: a stream of the broker that holds every call, in the same order for all processes.
//!
//! A call is appended as an entry, read back, and applied to a replica of the state machine; its
//! reply is the result of that. All processes apply the same entries in the same order, so their
//! replicas are equal, and a reply to one holds for all. Only the log decides about jobs. Messages
//! in the delay ladder carry payloads to the processes that need them, and may be lost, duplicated
//! or late.
//!
//! Modules, each of which uses only those above it:
//!
//! - `wire`: entries as bytes; `command`: commands with the types of their replies;
//! - `position`, `producers`, `snapshot`, `replica`: the state that results from the entries;
//! - `retention`, `cache`, `pending`, `shared`, `call`: what the tasks of an open log share;
//! - `stream`: consumers; `fetch`: payloads; `start`: where to start reading;
//! - `append`, `tail`, `compaction`: the three tasks.

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
use crate::error::Effect;
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
        log.call("connect", Effect::None, Barrier, |_, (), _| ()).await?;
        Ok(log)
    }

    /// The time that calls carry.
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
    /// `Closed`; `Unavailable` or `Full` if the broker does not take the command; `OutcomeUnknown`
    /// if it may have taken it and `effect` is lasting; `Incompatible` if the log cannot be read.
    ///
    /// # Cancellation safety
    /// A command whose call is dropped may still take effect.
    pub(crate) async fn call<C: TypedCommand, T: Send + 'static>(
        &self,
        operation: &'static str,
        effect: Effect,
        command: C,
        read: impl FnOnce(&mut Replica, C::Reply, AppliedAt) -> T + Send + 'static,
    ) -> Result<T> {
        self.shared.call(operation, effect, command, read).await
    }

    /// Fetches the payloads and headers at these positions. Those that the broker has deleted are
    /// left out.
    pub(crate) async fn fetch(&self, positions: Vec<LogPosition>) -> Result<Payloads> {
        fetch::fetch(&self.shared, positions).await
    }

    /// Whether the jobs take so much of the log that none should be added.
    pub(crate) fn is_full(&self) -> bool {
        let mut state = self.shared.state();
        let jobs = state.replica.machine().len();
        let is_full = state.retention.is_full();
        // That is as of the last snapshot, which may have been larger than the next.
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
            state.unsent.clear();
            state.sent.clear();
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
