//! Messages to the writer thread: tasks that run in a transaction and reply after its commit.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::error::{StoreError, StoreResult};
use crate::write_tx::WriteTx;

/// The writer fills a transaction until the total weight is large enough.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weight {
    pub(crate) items: usize,
    /// Approximate job size.
    pub(crate) bytes: usize,
}

impl Weight {
    pub(crate) const ONE: Self = Self::items(1);

    pub(crate) const fn items(items: usize) -> Self {
        Self { items, bytes: 0 }
    }

    pub(crate) const fn add(&mut self, other: Self) {
        self.items += other.items;
        self.bytes += other.bytes;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Write,
    /// Ends or renews held leases. Allowed even after a newer library version has reserved all
    /// other writes, because finished work should not run again.
    HeldLeases,
}

/// Sends a task's result to its caller; gets the transaction's error, or `None` after a commit.
pub(crate) type SendReply = Box<dyn FnOnce(Option<&StoreError>) + Send>;

/// Runs a call in a transaction, or gets the reason why it is rejected. Also returns the call's
/// error, because it ends the transaction.
type Run = Box<dyn FnOnce(StoreResult<&mut WriteTx<'_>>) -> (SendReply, Option<StoreError>) + Send>;

pub(crate) struct Task {
    pub(crate) access: Access,
    pub(crate) weight: Weight,
    /// Held until the task runs.
    _slot: Option<OwnedSemaphorePermit>,
    queued_at: Instant,
    run: Run,
}

impl Task {
    /// Makes a task that runs `work` in a transaction; after a commit, `on_commit` turns its result
    /// into the reply.
    pub(crate) fn new<T: Send + 'static, R: Send + 'static>(
        access: Access,
        weight: Weight,
        slot: Option<OwnedSemaphorePermit>,
        work: impl FnOnce(&mut WriteTx<'_>) -> StoreResult<T> + Send + 'static,
        on_commit: impl FnOnce(T) -> R + Send + 'static,
    ) -> (Self, oneshot::Receiver<StoreResult<R>>) {
        let (reply, receiver) = oneshot::channel();
        let run: Run = Box::new(move |tx| {
            let result = tx.and_then(work);
            let error = result.as_ref().err().cloned();
            let send_reply = move |tx_error: Option<&StoreError>| {
                let result = match (result, tx_error) {
                    (Ok(_), Some(error)) => Err(error.clone()),
                    (Ok(value), None) => Ok(on_commit(value)),
                    (Err(error), _) => Err(error),
                };
                // If the caller has stopped waiting, `ClaimGuard` returns its leases on drop.
                let _ = reply.send(result);
            };
            (Box::new(send_reply), error)
        });
        (Self { access, weight, _slot: slot, queued_at: Instant::now(), run }, receiver)
    }

    pub(crate) fn run(self, tx: &mut WriteTx<'_>) -> (SendReply, Option<StoreError>) {
        (self.run)(Ok(tx))
    }

    pub(crate) fn reject(self, error: StoreError) {
        let (send_reply, _) = (self.run)(Err(error));
        send_reply(None);
    }
}

/// Held leases come first: a lease may expire while they wait, other calls may wait.
#[derive(Default)]
pub(crate) struct TaskQueue {
    /// Fills a transaction by itself and found one in use, so it runs first in the next.
    first: Option<Task>,
    held_leases: VecDeque<Task>,
    writes: VecDeque<Task>,
}

impl TaskQueue {
    fn part(&mut self, access: Access) -> &mut VecDeque<Task> {
        match access {
            Access::HeldLeases => &mut self.held_leases,
            Access::Write => &mut self.writes,
        }
    }

    pub(crate) fn push(&mut self, task: Task) {
        self.part(task.access).push_back(task);
    }

    /// The next [`pop`](Self::pop) returns the task again.
    pub(crate) fn put_back(&mut self, task: Task) {
        self.first = Some(task);
    }

    pub(crate) fn pop(&mut self) -> Option<Task> {
        let first = self.first.take().or_else(|| self.held_leases.pop_front());
        first.or_else(|| self.writes.pop_front())
    }

    /// Takes a task that has waited `timeout` since `since`, or since its arrival if later.
    pub(crate) fn pop_waiting_for(&mut self, timeout: Duration, since: Instant) -> Option<Task> {
        let is_over = |task: &Task| task.queued_at.max(since).elapsed() >= timeout;
        if self.first.as_ref().is_some_and(is_over) {
            return self.first.take();
        }
        let parts = [&mut self.held_leases, &mut self.writes];
        parts.into_iter().find(|part| part.front().is_some_and(is_over))?.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.held_leases.is_empty() && self.writes.is_empty()
    }
}

pub(crate) enum WriterMessage {
    Task(Task),
    /// The writer then polls for foreign commits.
    ListenerAdded,
    /// The sender confirms the end.
    Close(oneshot::Sender<()>),
}
