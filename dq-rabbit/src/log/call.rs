//! Submits calls, and waits until their entries were read back and applied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dq_core::sync::lock;
use dq_core::{Error, ErrorKind, Result};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::pending::{AppliedAt, PendingCall, ReplyReader, Waiter};
use super::reply::CommandReply;
use super::shared::{LogShared, is_lasting};
use super::state::replica::Replica;
use super::wire::Command;
use crate::error::{LostReply, blocked, closed, copy, from_lapin, timed_out};

pub(crate) fn reply_only<R>(_: &mut Replica, reply: R, _: AppliedAt) -> R {
    reply
}

/// Maximum for all pending calls together. Beyond it, calls that store jobs fail with
/// `Unavailable`.
const MAX_PENDING_BYTES: usize = 64 * 1024 * 1024;

/// Response timeouts that a call may take while the log is replayed.
const REPLAY_TIMEOUTS: u32 = 6;
/// Response timeouts that each call may take that opens the log.
pub(super) const OPEN_TIMEOUTS: u32 = 120;

impl LogShared {
    /// Appends a command and waits until it is applied. `read` gets the reply and the state right
    /// after the command.
    ///
    /// # Errors
    /// `Closed` after [`close`](super::Log::close); `Unavailable` if the broker does not respond;
    /// `Full` during an alarm or if the log has no room; `OutcomeUnknown` instead of `Unavailable`
    /// if the command may take effect, when `lost_reply` says so or its entry was read within a
    /// snapshot; `Incompatible` if the log holds an entry that this version cannot decode.
    ///
    /// # Cancellation safety
    /// After the call is dropped, the command may still take effect.
    pub(crate) async fn call<R, T: Send + 'static>(
        &self,
        operation: &'static str,
        lost_reply: LostReply,
        command: Command,
        read: impl FnOnce(&mut Replica, R, AppliedAt) -> T + Send + 'static,
    ) -> Result<T>
    where
        R: TryFrom<CommandReply, Error = Error> + 'static,
    {
        self.call_within(REPLAY_TIMEOUTS, operation, lost_reply, command, read).await
    }

    pub(super) async fn call_within<R, T: Send + 'static>(
        &self,
        max_timeouts: u32,
        operation: &'static str,
        lost_reply: LostReply,
        command: Command,
        read: impl FnOnce(&mut Replica, R, AppliedAt) -> T + Send + 'static,
    ) -> Result<T>
    where
        R: TryFrom<CommandReply, Error = Error> + 'static,
    {
        let deadline = Instant::now() + self.response_timeout * max_timeouts;
        let (result, mut pending) = oneshot::channel();
        let was_sent = Arc::new(AtomicBool::new(false));
        let read = move |replica: &mut Replica, reply, at| {
            let reply = R::try_from(reply).map_err(|error| error.operation(operation))?;
            Ok(read(replica, reply, at))
        };
        let waiter = Some(Box::new(ReplyReader { result, read }) as Box<dyn Waiter>);
        self.submit(operation, command, Arc::clone(&was_sent), waiter)?;
        let lost_reply = || match was_sent.load(Ordering::Relaxed) {
            true => lost_reply,
            false => LostReply::Unavailable,
        };
        loop {
            let before = self.messages_read.load(Ordering::Relaxed);
            match tokio::time::timeout(self.response_timeout, &mut pending).await {
                Ok(Ok(result)) => return result,
                Ok(Err(_)) => {
                    let was_sent = was_sent.load(Ordering::Relaxed);
                    return Err(self.dropped_error(operation, was_sent, lost_reply()));
                }
                // In a replay, each message is progress. At the log's end, only own messages are.
                Err(_)
                    if self.is_catching_up()
                        && self.messages_read.load(Ordering::Relaxed) != before
                        && Instant::now() < deadline => {}
                Err(_) => {
                    let lost_reply = {
                        // Under the lock, so that the appender cannot send the call in between.
                        let _state = self.state();
                        drop(pending);
                        lost_reply()
                    };
                    return Err(self.timeout_error(operation, lost_reply));
                }
            }
        }
    }

    /// Adds a call to the unsent ones.
    ///
    /// # Errors
    /// `Closed`; the log's fatal error; `Unavailable` if too many bytes are pending.
    pub(super) fn submit(
        &self,
        operation: &'static str,
        command: Command,
        was_sent: Arc<AtomicBool>,
        waiter: Option<Box<dyn Waiter>>,
    ) -> Result<()> {
        let size = command.size();
        // In this order, so that a lease ends no later by elapsed time than by the log's time of
        // day. Its holder counts from before this call.
        let submitted = self.clock.elapsed();
        let at = self.clock.now();
        {
            let mut state = self.state();
            if self.closed.load(Ordering::Acquire) {
                return Err(closed(operation));
            }
            if let Some(error) = self.failure(operation) {
                return Err(error);
            }
            if state.outbox.pending_bytes + size > MAX_PENDING_BYTES
                && state.outbox.pending_bytes > 0
                // New jobs that wait for room must not keep running jobs from being renewed and
                // settled.
                && command.adds_jobs()
            {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "too many calls are waiting for the RabbitMQ broker",
                )
                .remedy("check that the broker runs and is not out of memory or disk")
                .operation(operation));
            }
            // Every call treats a job with an expired lease as due.
            for command in state.replica.end_expired(submitted) {
                state.outbox.enqueue(PendingCall::without_caller(at, submitted, command));
            }
            state.outbox.enqueue(PendingCall { at, submitted, command, size, was_sent, waiter });
        }
        self.call_submitted.notify_one();
        Ok(())
    }

    fn dropped_error(
        &self,
        operation: &'static str,
        was_sent: bool,
        lost_reply: LostReply,
    ) -> Error {
        if self.closed.load(Ordering::Acquire) {
            return closed(operation);
        }
        match self.failure(operation) {
            // This process reads no further, and others apply its entry.
            Some(error) => lost_reply.in_error(error),
            // No generation could take the call.
            None if !was_sent => {
                let failure = self.state().change_failure.clone();
                match failure {
                    Some(error) => copy(&error, error.kind(), operation),
                    None => self.timeout_error(operation, LostReply::Unavailable),
                }
            }
            // The entry took effect before the snapshot from which the replica was restored.
            None => Error::new(
                ErrorKind::OutcomeUnknown,
                "the log was replayed from a snapshot, and the reply is lost",
            )
            .remedy("repeat the call with the same job ids: what took effect already is kept")
            .operation(operation),
        }
    }

    /// Names the cause if it is known.
    pub(super) fn timeout_error(&self, operation: &'static str, lost_reply: LostReply) -> Error {
        let broker = self.publish.broker_info();
        if let Some(reason) = self.publish.blocked() {
            let error = blocked(operation, broker, &reason);
            return lost_reply.in_error(error);
        }
        match self.publish.failure().or_else(|| self.consume.failure()) {
            Some(error) => from_lapin(operation, lost_reply, broker, &error),
            None => match &*lock(&self.last_error) {
                Some(error) if is_lasting(error) => {
                    let error = copy(error, error.kind(), operation);
                    if error.is_retryable() { lost_reply.in_error(error) } else { error }
                }
                _ => timed_out(operation, lost_reply, broker),
            },
        }
    }
}
