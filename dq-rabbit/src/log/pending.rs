//! Calls of this process that wait for their reply.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dq_core::{Result, Timestamp};
use tokio::sync::oneshot;

use super::command::CommandReply;
use super::state::replica::Replica;
use super::wire;

pub(super) struct PendingCall {
    /// When the call was made.
    pub(super) at: Timestamp,
    /// The same by elapsed time.
    pub(super) submitted: Duration,
    pub(super) command: wire::Command,
    /// In the log, in bytes.
    pub(super) size: usize,
    /// Whether it may take effect. Shared with the caller.
    pub(super) was_sent: Arc<AtomicBool>,
    pub(super) waiter: Box<dyn Waiter>,
}

impl PendingCall {
    pub(super) fn without_caller(
        at: Timestamp,
        submitted: Duration,
        command: wire::Command,
    ) -> Self {
        let size = command.size();
        Self { at, submitted, command, size, was_sent: Arc::default(), waiter: Box::new(NoCaller) }
    }
}

/// A call that was sent and not read back yet.
pub(super) struct SentCall {
    pub(super) sequence: u64,
    pub(super) call: PendingCall,
}

/// Where and when an entry was applied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AppliedAt {
    /// The offset of its message in the log.
    pub(crate) offset: u64,
    /// The entry's time, by its writer's clock.
    pub(crate) now: Timestamp,
    /// Whether the entry begins the snapshot in progress. `false` if another one is in progress.
    pub(crate) begins_snapshot: bool,
}

/// Waits for the reply of a call.
pub(super) trait Waiter: Send {
    /// The caller has given up.
    fn is_gone(&self) -> bool;

    /// Gets the state right after the entry. A call that is refused before it is sent gets
    /// `CommandReply::Full` and the present state; `at` means nothing.
    fn deliver(self: Box<Self>, replica: &mut Replica, reply: CommandReply, at: AppliedAt);
}

/// The waiter of an entry that must be appended although nobody waits.
pub(super) struct NoCaller;

impl Waiter for NoCaller {
    fn is_gone(&self) -> bool {
        false
    }

    fn deliver(self: Box<Self>, _: &mut Replica, _: CommandReply, _: AppliedAt) {}
}

/// Reads the reply and the state for a caller.
pub(super) struct ReplyReader<T, F> {
    pub(super) result: oneshot::Sender<Result<T>>,
    pub(super) read: F,
}

impl<T, F> Waiter for ReplyReader<T, F>
where
    T: Send,
    F: FnOnce(&mut Replica, CommandReply, AppliedAt) -> Result<T> + Send,
{
    fn is_gone(&self) -> bool {
        self.result.is_closed()
    }

    fn deliver(self: Box<Self>, replica: &mut Replica, reply: CommandReply, at: AppliedAt) {
        // The entry has taken effect even without its caller.
        let _ = self.result.send((self.read)(replica, reply, at));
    }
}
