//! Messages to the writer thread: tasks that run in a transaction and get their reply after its
//! commit.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::error::{StoreError, StoreResult};
use crate::write_tx::WriteTx;

/// Size of a task. The writer adds tasks to a transaction until the sum of their weights is large
/// enough.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weight {
    /// Number of jobs, settlements or other items.
    pub(crate) items: usize,
    /// Approximate size of the jobs to store.
    pub(crate) bytes: usize,
}

impl Weight {
    /// A task with one small item.
    pub(crate) const ONE: Self = Self::items(1);

    pub(crate) const fn items(items: usize) -> Self {
        Self { items, bytes: 0 }
    }

    pub(crate) const fn add(&mut self, other: Self) {
        self.items += other.items;
        self.bytes += other.bytes;
    }
}

/// What a task needs to be allowed to do with the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Any write.
    Write,
    /// Ends or renews leases that are held. A program does so even if a newer version of the library
    /// has reserved all other writes for newer programs, since work that has been done would
    /// otherwise be done again.
    HeldLeases,
}

/// Sends the result of a task to its caller. The argument is the error of the transaction; `None`
/// after a successful commit.
pub(crate) type SendReply = Box<dyn FnOnce(Option<&StoreError>) + Send>;

/// A call to the store, whatever the type of its result.
pub(crate) trait Task: Send {
    /// Runs the call in a transaction. Its error, if any, is also returned beside the reply,
    /// because it ends the transaction.
    fn run(self: Box<Self>, tx: &mut WriteTx<'_>) -> (SendReply, Option<StoreError>);

    /// Replies with this error, for a call that does not run.
    fn reject(self: Box<Self>, error: StoreError);
}

/// The [`Task`] of a call: its two functions (see [`QueuedTask::new`]) and the channel of its
/// reply.
struct Call<F, C, R> {
    work: F,
    on_commit: C,
    reply: oneshot::Sender<StoreResult<R>>,
}

impl<F, C, T, R> Task for Call<F, C, R>
where
    F: FnOnce(&mut WriteTx<'_>) -> StoreResult<T> + Send,
    C: FnOnce(T) -> R + Send + 'static,
    T: Send + 'static,
    R: Send + 'static,
{
    fn run(self: Box<Self>, tx: &mut WriteTx<'_>) -> (SendReply, Option<StoreError>) {
        let Self { work, on_commit, reply } = *self;
        let result = work(tx);
        let error = result.as_ref().err().cloned();
        let send_reply = move |tx_error: Option<&StoreError>| {
            let result = match (result, tx_error) {
                (Ok(_), Some(error)) => Err(error.clone()),
                (Ok(value), None) => Ok(on_commit(value)),
                (Err(error), _) => Err(error),
            };
            // The caller may have stopped waiting. A `ClaimGuard` then returns its leases on drop.
            let _ = reply.send(result);
        };
        (Box::new(send_reply), error)
    }

    fn reject(self: Box<Self>, error: StoreError) {
        // The caller may have stopped waiting.
        let _ = self.reply.send(Err(error));
    }
}

/// A task in the writer's channel.
pub(crate) struct QueuedTask {
    pub(crate) access: Access,
    pub(crate) weight: Weight,
    /// Its slot until it runs; `None` for tasks that need none.
    _slot: Option<OwnedSemaphorePermit>,
    queued_at: Instant,
    pub(crate) task: Box<dyn Task>,
}

impl QueuedTask {
    /// Makes a task of `work`, which runs in a transaction, and of `on_commit`, which turns its
    /// result into the reply after a successful commit.
    pub(crate) fn new<T: Send + 'static, R: Send + 'static>(
        access: Access,
        weight: Weight,
        slot: Option<OwnedSemaphorePermit>,
        work: impl FnOnce(&mut WriteTx<'_>) -> StoreResult<T> + Send + 'static,
        on_commit: impl FnOnce(T) -> R + Send + 'static,
    ) -> (Self, oneshot::Receiver<StoreResult<R>>) {
        let (reply, receiver) = oneshot::channel();
        let task = Box::new(Call { work, on_commit, reply });
        (Self { access, weight, _slot: slot, queued_at: Instant::now(), task }, receiver)
    }
}

/// Tasks that have not run. Those for leases that are held come first: the lease may expire while
/// they wait, and other calls may wait.
#[derive(Default)]
pub(crate) struct TaskQueue {
    /// Fills a transaction. It has found one in use, and runs first in the next one.
    first: Option<QueuedTask>,
    held_leases: VecDeque<QueuedTask>,
    writes: VecDeque<QueuedTask>,
}

impl TaskQueue {
    fn part(&mut self, access: Access) -> &mut VecDeque<QueuedTask> {
        match access {
            Access::HeldLeases => &mut self.held_leases,
            Access::Write => &mut self.writes,
        }
    }

    pub(crate) fn push(&mut self, task: QueuedTask) {
        self.part(task.access).push_back(task);
    }

    /// Returns the task of the last [`pop`](Self::pop), which will be that of the next one.
    pub(crate) fn put_back(&mut self, task: QueuedTask) {
        self.first = Some(task);
    }

    pub(crate) fn pop(&mut self) -> Option<QueuedTask> {
        let first = self.first.take().or_else(|| self.held_leases.pop_front());
        first.or_else(|| self.writes.pop_front())
    }

    /// Takes a task that has waited this long since `since`, or since it was queued if that is later.
    pub(crate) fn pop_waiting_for(
        &mut self,
        timeout: Duration,
        since: Instant,
    ) -> Option<QueuedTask> {
        let is_over = |task: &QueuedTask| task.queued_at.max(since).elapsed() >= timeout;
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

/// A message to the writer thread.
pub(crate) enum WriterMessage {
    Task(QueuedTask),
    /// Wakes the writer, so that it begins to poll for commits of other connections.
    ListenerAdded,
    /// Ends the writer; the sender confirms its end.
    Close(oneshot::Sender<()>),
}

/// Sends writes to the writer thread without waiting for them: ends of leases that nobody received.
#[derive(Debug, Clone)]
pub(crate) struct BackgroundWrites {
    pub(crate) messages: mpsc::Sender<WriterMessage>,
}

impl BackgroundWrites {
    pub(crate) fn send(
        &self,
        weight: Weight,
        work: impl FnOnce(&mut WriteTx<'_>) -> StoreResult<()> + Send + 'static,
    ) {
        let (task, _) = QueuedTask::new(Access::HeldLeases, weight, None, work, |()| ());
        // Fails only if the store is closed; leases then lapse.
        let _ = self.messages.send(WriterMessage::Task(task));
    }
}
