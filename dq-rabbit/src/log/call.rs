//! Calls: written to the log, and answered when they are read back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dq_core::{Error, ErrorKind, Result, Timestamp};
use tokio::sync::oneshot;

use super::{Command, Replica, Reply, Shared, again, append};
use crate::error::{Effect, blocked, closed, from_lapin, outcome_unknown, timed_out};

/// Bytes of calls that may wait for the broker.
const BACKLOG: usize = 64 * 1024 * 1024;

/// A call, and who waits for it.
pub(super) struct Call {
    pub(super) at: Timestamp,
    pub(super) command: Command,
    pub(super) weight: usize,
    /// Whether it was written, so that it may take effect.
    pub(super) written: Arc<AtomicBool>,
    pub(super) waiter: Box<dyn Waiter>,
}

/// A call that was written and not read back yet.
pub(super) struct Sent {
    pub(super) number: u64,
    pub(super) call: Call,
}

/// Who waits for the answer to a call.
pub(super) trait Waiter: Send {
    fn is_gone(&self) -> bool;
    fn answer(self: Box<Self>, replica: &mut Replica, reply: Reply, place: At);
}

/// Where in the log and when a call took effect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) offset: u64,
    pub(crate) now: Timestamp,
    /// Whether a copy begins there, and nobody else is at one.
    pub(crate) begins: bool,
}

struct Waiting<T, F> {
    answer: oneshot::Sender<T>,
    read: F,
}

impl<T: Send, F: FnOnce(&mut Replica, Reply, At) -> T + Send> Waiter for Waiting<T, F> {
    fn is_gone(&self) -> bool {
        self.answer.is_closed()
    }

    fn answer(self: Box<Self>, replica: &mut Replica, reply: Reply, place: At) {
        // Whoever asked may have gone; the call took effect all the same.
        let _ = self.answer.send((self.read)(replica, reply, place));
    }
}

impl Shared {
    /// See [`Log::call`](super::Log::call).
    pub(super) async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        effect: Effect,
        command: Command,
        read: impl FnOnce(&mut Replica, Reply, At) -> T + Send + 'static,
    ) -> Result<T> {
        let (answer, mut answered) = oneshot::channel();
        let written = Arc::new(AtomicBool::new(false));
        let waiter = Box::new(Waiting { answer, read });
        self.submit(operation, command, Arc::clone(&written), waiter)?;
        loop {
            let before = self.read.load(Ordering::Relaxed);
            let patience = self.settings.response_timeout;
            match tokio::time::timeout(patience, &mut answered).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(_)) => return Err(self.dropped(operation)),
                // A long log takes its time to read. Later, what others write says nothing of us.
                Err(_)
                    if !self.caught_up.load(Ordering::Relaxed)
                        && self.read.load(Ordering::Relaxed) != before => {}
                Err(_) => {
                    let effect = {
                        let _still = self.state();
                        // What was not written so far never is, once nobody waits for it.
                        drop(answered);
                        if written.load(Ordering::Relaxed) { effect } else { Effect::None }
                    };
                    return Err(self.unanswered(operation, effect));
                }
            }
        }
    }

    fn submit(
        &self,
        operation: &'static str,
        command: Command,
        written: Arc<AtomicBool>,
        waiter: Box<dyn Waiter>,
    ) -> Result<()> {
        let weight = append::weight(&command);
        let at = self.clock.now();
        {
            let mut state = self.state();
            if self.closed.load(Ordering::Acquire) {
                return Err(closed(operation));
            }
            if let Some(broken) = self.broken() {
                return Err(broken.operation(operation));
            }
            if state.waiting_bytes + weight > BACKLOG
                && state.waiting_bytes > 0
                && !matches!(command, Command::Copy(_))
            {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "too much waits for the RabbitMQ broker already",
                )
                .remedy("see whether the broker is up and not out of memory or disk")
                .operation(operation));
            }
            state.waiting_bytes += weight;
            state.unsent.push_back(Call { at, command, weight, written, waiter });
        }
        self.waiting.notify_one();
        Ok(())
    }

    /// Why a call is not going to be answered.
    fn dropped(&self, operation: &'static str) -> Error {
        if self.closed.load(Ordering::Acquire) {
            return closed(operation);
        }
        let error = self.broken().unwrap_or_else(|| {
            Error::new(ErrorKind::OutcomeUnknown, "the log was cut while a call was on its way")
                .remedy("repeat the call with the same job ids: what took effect already is kept")
        });
        error.operation(operation)
    }

    /// Why there is no answer.
    pub(super) fn unanswered(&self, operation: &'static str, effect: Effect) -> Error {
        let server = self.publish.broker_info();
        if let Some(reason) = self.publish.blocked() {
            let error = blocked(operation, server, &reason);
            return if effect == Effect::Lasting { outcome_unknown(&error) } else { error };
        }
        // A link that is down knows why.
        match self.publish.failure().or_else(|| self.consume.failure()) {
            Some(error) => from_lapin(operation, effect, server, &error),
            None => match &*self.troubles() {
                Some(error) if !error.is_retryable() => again(error).operation(operation),
                _ => timed_out(operation, effect, server),
            },
        }
    }
}
