//! The log: RabbitMQ streams that hold every call, in the same order for all processes.
//!
//! A stream is an append-only queue; consumers read it from any *offset*, a message's number. The
//! log is one stream at a time, a *generation*. A long generation is closed, and the next one
//! begins with a snapshot.
//!
//! A call is appended as an entry, read back, and applied to the replica; its reply is the result.
//! All processes apply the same entries in the same order, so their replicas agree on every reply.
//!
//! - *entry*: a command with its producer's id, sequence number and time.
//! - *producer*: an open log, with a random id. Entries with a repeated number are *duplicates* and
//!   ignored. After a missing number there is a *gap*: later entries have no effect until the
//!   producer has sent the missing ones.
//! - *replica*: all jobs (a [`Machine`](dq_core::machine::Machine)), with each payload's position
//!   and checksum instead of the payload.
//! - *barrier*: an entry without effect. Once it is read back, the replica contains all earlier
//!   changes.
//! - *snapshot*: the whole state in a generation, so that earlier generations can be deleted.
//! - *log id*: tells this log from a deleted one with the same name.
//!
//! Modules, each builds on those before it:
//!
//! - `wire`: commands and entries as bytes; `reply`: replies;
//! - `state`: the replica and its parts;
//! - `pending`, `cache`, `skipped`, `read_before`, `shared`, `call`: the tasks' common state;
//! - `stream`, `generation`, `fetch`, `history`: consumers, generations, payloads, limits;
//! - `outgoing`, `apply`: messages of calls, and the effect of messages that were read;
//! - `append`, `tail`, `generation::compaction`: the three tasks; `loss`: reports losses.

mod append;
mod apply;
mod cache;
mod call;
mod fetch;
pub(crate) mod generation;
mod history;
mod loss;
mod outgoing;
mod pending;
mod read_before;
pub(crate) mod reply;
mod shared;
mod skipped;
mod state;
mod stream;
mod tail;
#[cfg(test)]
mod task_tests;
pub(crate) mod wire;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{Clock, Error, JobId, Result, Timestamp};
use tokio_util::task::TaskTracker;

#[cfg(test)]
use self::generation::Generation;
use self::shared::LogShared;

pub(crate) use self::call::reply_only;
pub(crate) use self::fetch::ReadPurpose;
pub(crate) use self::loss::{LOSSES, REMEDY as LOSS_REMEDY};
pub(crate) use self::pending::AppliedAt;
pub(crate) use self::shared::LogContext;
pub(crate) use self::skipped::SkippedMessages;
pub(crate) use self::state::capacity::Usage;
pub(crate) use self::state::replica::{CLAIM_AHEAD, RESERVED_FOR, Replica};
pub(crate) use self::state::stored::{PayloadRef, ReplicaJob, ReplicaMachine, StoredPayload};

/// An open log. Its drop stops the tasks.
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
    /// Starts the tasks and waits until the state is known.
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
        tasks.spawn(
            stop().run_until_cancelled_owned(generation::compaction::run(Arc::clone(&shared))),
        );
        let log = Self { shared, tasks };
        history::sync_limits(&log.shared, "connect").await?;
        Ok(log)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.shared.clock
    }

    pub(crate) async fn read_payloads(
        &self,
        jobs: impl IntoIterator<Item = (JobId, PayloadRef)>,
        purpose: ReadPurpose,
    ) -> Result<HashMap<JobId, Bytes>> {
        fetch::read(&self.shared, jobs, purpose).await
    }

    pub(crate) fn usage(&self) -> Usage {
        self.shared.state().replica.usage()
    }

    /// Checks the room for these jobs, as of the last applied entry. The log decides; this keeps
    /// payloads out that it would refuse.
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
        Err(reply::full().operation(operation))
    }

    /// Why the log cannot go on in its next generation.
    pub(crate) fn change_failure(&self) -> Option<Error> {
        self.shared.state().change_failure.clone()
    }

    /// Returns the last loss, each once.
    pub(crate) fn take_loss(&self) -> Option<Error> {
        lock(&self.shared.untold_loss).take()
    }

    pub(crate) fn add_lost_payload(&self, job: JobId) {
        self.shared.state().add_lost_payload(job);
    }

    pub(crate) fn lost_payloads(&self) -> BTreeSet<JobId> {
        self.shared.state().lost_payloads.clone()
    }

    pub(crate) fn skipped(&self) -> SkippedMessages {
        self.shared.state().skipped
    }

    #[cfg(test)]
    pub(crate) fn announced(&self) -> Option<Generation> {
        self.shared.state().announced
    }

    /// Holds this process before its next generation until the guard is dropped.
    #[cfg(test)]
    pub(crate) async fn hold_before_next_generation(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.shared.may_begin_to_read).lock_owned().await
    }

    /// Stops this process after this step, and cancels the returned token.
    #[cfg(test)]
    pub(crate) fn crash_at(&self, step: &'static str) -> tokio_util::sync::CancellationToken {
        *lock(&self.shared.crash_at) = Some(step);
        self.shared.stop.clone()
    }

    /// Reads the state as of the last applied entry.
    pub(crate) fn peek<T>(&self, read: impl FnOnce(&mut Replica) -> T) -> T {
        read(&mut self.shared.state().replica)
    }

    /// Closes the log. Pending calls fail with `Closed`.
    pub(crate) async fn close(&self) {
        {
            let mut state = self.shared.state();
            self.shared.closed.store(true, Ordering::Release);
            state.outbox.clear();
        }
        self.shared.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Deref for Log {
    type Target = LogShared;

    fn deref(&self) -> &LogShared {
        &self.shared
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}
