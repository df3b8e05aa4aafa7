//! The log: RabbitMQ streams that hold every call, in the same order for all processes.
//!
//! A stream is an append-only queue that any number of consumers can read from any *offset*, the
//! number of a message. The log is one stream at a time, a *generation*. When it has grown long, it is
//! closed, and the log goes on in the next generation, which begins with the state in short.
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
//! - *producer*: an open log, until it loses count of its entries (it then goes on as another
//!   producer). Its id is random. Entries of a producer are numbered from 1; an
//!   entry that is read a second time is a *duplicate* and is ignored. After a missing number there
//!   is a *gap*: the producer's later entries have no effect until it has sent the missing ones
//!   again.
//! - *replica*: the state of all jobs (a [`Machine`](dq_core::machine::Machine)) in the memory of
//!   each process, without payloads. It holds the [`LogPosition`] of each payload instead, and a
//!   hash of it: messages may bring payloads that the log does not have.
//! - *barrier*: an entry that changes nothing. Once it is read back, the replica contains all
//!   changes that were made before the call, so reads (`get`, `stats`, `browse`) append one.
//! - *snapshot*: the whole state, written into a generation, so that those before it are not needed
//!   any more and can be deleted.
//! - *log id*: tells this log from an earlier one with the same name that was deleted.
//!
//! Modules, in the order in which they build on each other:
//!
//! - `wire`: entries as bytes; `command`: commands with the types of their replies;
//! - `position`, `producers`, `capacity`, `leases`, `snapshot`, `replica`: the state that
//!   results from the entries;
//! - `retention`, `cache`, `skipped`, `lost`, `skew`, `read_before`, `pending`, `shared`, `call`: what the tasks of an
//!   open log share;
//! - `history`: the limits of the history;
//!   `stream`: consumers; `fetch`: payloads; `directory`: the protocol of generations, and where
//!   to start reading;
//! - `loss`: tells what the log has lost; `append`, `tail`, `compaction`: the three tasks of an open log, which append entries, read and
//!   apply them, and change the generation.

mod append;
mod cache;
mod call;
mod capacity;
#[cfg(test)]
mod capacity_tests;
pub(crate) mod command;
mod compaction;
mod directory;
mod fetch;
mod history;
#[cfg(test)]
mod lease_tests;
mod leases;
mod loss;
mod lost;
mod pending;
mod position;
mod producers;
mod read_before;
mod replica;
mod retention;
mod shared;
mod skew;
mod skipped;
mod snapshot;
mod stream;
mod tail;
#[cfg(test)]
mod task_tests;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{Clock, Error, JobId, Result, Timestamp};
use tokio_util::task::TaskTracker;

use self::command::TypedCommand;
use self::shared::LogShared;
use crate::error::LostReply;
#[cfg(test)]
use crate::generation::Generation;

pub(crate) use self::capacity::Usage;
pub(crate) use self::fetch::ReadPurpose;
pub(crate) use self::loss::{LOSSES, REMEDY as LOSS_REMEDY};
pub(crate) use self::lost::LostPayloads;
pub(crate) use self::pending::AppliedAt;
#[cfg(test)]
pub(crate) use self::position::LogPosition;
pub(crate) use self::position::{PayloadRef, headers_of};
pub(crate) use self::replica::{CLAIM_AHEAD, Replica};
pub(crate) use self::shared::{LogContext, LogSettings};
pub(crate) use self::skipped::SkippedMessages;

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
    ///
    /// # Errors
    /// `Incompatible` if another version has written the log; `Unavailable` if the broker does not
    /// respond.
    pub(crate) async fn open(context: LogContext) -> Result<Self> {
        let shared = Arc::new(LogShared::new(context));
        let tasks = TaskTracker::new();
        let stop = || shared.stop.clone();
        tasks.spawn(stop().run_until_cancelled_owned(tail::run(Arc::clone(&shared))));
        tasks.spawn(stop().run_until_cancelled_owned(append::run(Arc::clone(&shared))));
        tasks.spawn(stop().run_until_cancelled_owned(compaction::run(Arc::clone(&shared))));
        let log = Self { shared, tasks };
        log.sync_history(&log.shared.history_limits, "connect").await?;
        Ok(log)
    }

    /// Sets the limits of the history to those of a process if the log has others.
    pub(crate) async fn sync_history(
        &self,
        limits: &wire::HistoryLimits,
        operation: &'static str,
    ) -> Result<()> {
        history::sync_limits(&self.shared, limits, operation).await
    }

    /// The time of this process's clock, which its entries carry.
    pub(crate) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.shared.clock
    }

    /// Appends a command and waits until it has been applied. `read` makes the result from the
    /// reply and from the state right after the command.
    ///
    /// # Errors
    /// `Closed` after [`close`](Self::close); `Unavailable` if the broker does not respond; `Full`
    /// if it has a resource alarm or the log has no room; `OutcomeUnknown` in place of
    /// `Unavailable` if the command may take effect all the same, when `lost_reply` says so or its
    /// entry was read within a snapshot; `Incompatible` if the log holds an entry that this version
    /// cannot decode.
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

    /// Reads the payloads of these jobs in one pass. Those that the log does not have any more are
    /// left out.
    pub(crate) async fn read_payloads(
        &self,
        jobs: impl IntoIterator<Item = (JobId, PayloadRef)>,
        purpose: ReadPurpose,
    ) -> Result<HashMap<JobId, Bytes>> {
        fetch::read(&self.shared, jobs, purpose).await
    }

    /// How much of its capacity the log uses, as of the last applied entry.
    pub(crate) fn usage(&self) -> Usage {
        self.shared.state().replica.usage()
    }

    /// Checks whether the log has room for these jobs, as of the last applied entry. The log
    /// decides; this keeps payloads out of it that it would refuse.
    ///
    /// # Errors
    /// `Full`.
    pub(crate) fn expect_room<'a>(
        &self,
        operation: &'static str,
        jobs: impl IntoIterator<Item = &'a wire::NewJob>,
    ) -> Result<()> {
        let state = self.shared.state();
        if !state.replica.is_ready() || state.replica.has_room(0, jobs) {
            return Ok(());
        }
        Err(command::full().operation(operation))
    }

    /// The largest skew between this clock and that of another process that writes to the log, in
    /// milliseconds; positive if that one is ahead.
    pub(crate) fn clock_skew(&self) -> Option<i64> {
        self.shared.state().skews.largest(self.shared.clock.elapsed())
    }

    /// Why the log cannot go on in its next generation.
    pub(crate) fn change_failure(&self) -> Option<Error> {
        self.shared.state().change_failure.clone()
    }

    /// The loss of acknowledged entries that was found last, once.
    pub(crate) fn take_loss(&self) -> Option<Error> {
        lock(&self.shared.untold_loss).take()
    }

    /// Records that the log does not have the payload of a job.
    pub(crate) fn add_lost_payload(&self, job: JobId) {
        self.shared.state().lost_payloads.add(job);
    }

    /// The jobs that were found without their payload so far.
    pub(crate) fn lost_payloads(&self) -> LostPayloads {
        self.shared.state().lost_payloads.clone()
    }

    /// The messages that were skipped so far.
    pub(crate) fn skipped(&self) -> SkippedMessages {
        self.shared.state().skipped
    }

    /// The generation that is read and written.
    #[cfg(test)]
    pub(crate) fn generation(&self) -> Option<Generation> {
        self.shared.generation()
    }

    /// The newest generation that this process has announced or found in the directory.
    #[cfg(test)]
    pub(crate) fn announced(&self) -> Option<Generation> {
        self.shared.state().announced
    }

    /// Reads no further generation until the returned guard is dropped.
    #[cfg(test)]
    pub(crate) async fn hold_before_next_generation(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.shared.may_begin_to_read).lock_owned().await
    }

    /// Does nothing any more after this step of a change of generation. The returned token is
    /// cancelled there.
    #[cfg(test)]
    pub(crate) fn crash_at(&self, step: &'static str) -> tokio_util::sync::CancellationToken {
        *lock(&self.shared.crash_at) = Some(step);
        self.shared.stop.clone()
    }

    /// Reads the state as of the last applied entry, without a call.
    pub(crate) fn peek<T>(&self, read: impl FnOnce(&mut Replica) -> T) -> T {
        read(&mut self.shared.state().replica)
    }

    /// The error for which the log cannot be read any further, if there is one, as an error of
    /// `operation`.
    pub(crate) fn failure(&self, operation: &'static str) -> Option<Error> {
        self.shared.fatal_error(operation)
    }

    /// Stops all tasks. Pending calls fail with `Closed`.
    pub(crate) async fn close(&self) {
        {
            let mut state = self.shared.state();
            self.shared.closed.store(true, Ordering::Release);
            state.unsent_calls.clear();
            state.sent_calls.clear();
            (state.pending_bytes, state.sent_bytes) = (0, 0);
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
