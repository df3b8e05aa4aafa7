//! Calls that wait for their entries to be applied.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dq_core::{Result, Timestamp};
use tokio::sync::oneshot;

use super::command::CommandReply;
use super::replica::Replica;
use super::wire;

/// A command that has not been applied yet.
pub(super) struct PendingCall {
    /// When the call was made, by the time of day and by elapsed time.
    pub(super) at: Timestamp,
    pub(super) submitted: Duration,
    pub(super) command: wire::Command,
    /// Approximate size in the log, in bytes.
    pub(super) size: usize,
    /// Whether it was sent to the broker, so that it may take effect. Shared with the caller.
    pub(super) was_sent: Arc<AtomicBool>,
    pub(super) waiter: Box<dyn Waiter>,
}

/// A call that was sent and not read back yet.
pub(super) struct SentCall {
    pub(super) sequence: u64,
    pub(super) call: PendingCall,
}

/// Where and when an entry was applied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AppliedAt {
    pub(crate) offset: u64,
    /// The time of the entry.
    pub(crate) now: Timestamp,
    /// Whether the entry is the beginning of the snapshot that is in progress. `false` if another
    /// snapshot was in progress, which then goes on instead.
    pub(crate) begins_snapshot: bool,
}

/// The caller that waits for a reply.
pub(super) trait Waiter: Send {
    /// Whether the caller has given up.
    fn is_gone(&self) -> bool;

    /// Delivers the reply, with the state right after the entry. A call that is refused before it
    /// is sent gets `CommandReply::Full` with the present state, and `at` means nothing.
    fn deliver(self: Box<Self>, replica: &mut Replica, reply: CommandReply, at: AppliedAt);
}

/// The waiter of an entry that no caller waits for, and that must be appended all the same.
pub(super) struct NoCaller;

impl Waiter for NoCaller {
    fn is_gone(&self) -> bool {
        false
    }

    fn deliver(self: Box<Self>, _: &mut Replica, _: CommandReply, _: AppliedAt) {}
}

/// A [`Waiter`] that computes the caller's result with `read`, from the reply and the state.
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
        // The caller may be gone; the entry has taken effect all the same.
        let _ = self.result.send((self.read)(replica, reply, at));
    }
}
