//! Calls of this process that wait for their reply.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dq_core::{Result, Timestamp};
use tokio::sync::oneshot;

use super::generation::Generation;
use super::reply::CommandReply;
use super::state::replica::Replica;
use super::wire::{Command, Entry};

pub(super) struct PendingCall {
    /// When the call was made.
    pub(super) at: Timestamp,
    /// The same by elapsed time.
    pub(super) submitted: Duration,
    pub(super) command: Command,
    /// In bytes.
    pub(super) size: usize,
    /// Whether it may take effect. Shared with the caller.
    pub(super) was_sent: Arc<AtomicBool>,
    /// `None` if the entry must be appended although nobody waits.
    pub(super) waiter: Option<Box<dyn Waiter>>,
}

impl PendingCall {
    pub(super) fn without_caller(at: Timestamp, submitted: Duration, command: Command) -> Self {
        let size = command.size();
        Self { at, submitted, command, size, was_sent: Arc::default(), waiter: None }
    }

    /// The caller has given up.
    pub(super) fn is_abandoned(&self) -> bool {
        self.waiter.as_ref().is_some_and(|waiter| waiter.is_gone())
    }

    /// Gives the caller the state right after the entry. A refused call gets `CommandReply::Full`
    /// and the present state; `at` means nothing.
    pub(super) fn deliver(self, replica: &mut Replica, reply: CommandReply, at: AppliedAt) {
        if let Some(waiter) = self.waiter {
            waiter.deliver(replica, reply, at);
        }
    }
}

/// A call that was sent and not read back yet.
pub(super) struct SentCall {
    pub(super) sequence: u64,
    pub(super) call: PendingCall,
}

impl SentCall {
    pub(super) fn to_entry(&self, producer_id: u64) -> Entry {
        let PendingCall { at, command, .. } = &self.call;
        Entry { producer_id, sequence: self.sequence, at: *at, command: command.clone() }
    }
}

/// The calls of this process that were not read back. A call gets its sequence number when it is
/// sent.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) unsent: VecDeque<PendingCall>,
    pub(super) sent: VecDeque<SentCall>,
    /// The bytes of all these calls.
    pub(super) pending_bytes: usize,
    /// The bytes of the sent calls.
    pub(super) sent_bytes: usize,
    pub(super) producer_id: u64,
    pub(super) next_sequence: u64,
    /// The log has lost own entries that were read back before, so the next rewrite begins a new
    /// sequence with a new id.
    pub(super) sequence_lost: bool,
    /// Entries from this one on were written since the last replay began. Earlier ones that are
    /// read may be old copies.
    pub(super) fresh_from: u64,
    /// The generation into which the sent calls, or the probe, were written.
    pub(super) written: Option<Generation>,
}

impl Outbox {
    pub(super) fn new(producer_id: u64) -> Self {
        Self { producer_id, next_sequence: 1, fresh_from: 1, ..Self::default() }
    }

    pub(super) fn enqueue(&mut self, call: PendingCall) {
        self.pending_bytes += call.size;
        self.unsent.push_back(call);
    }

    /// Adds a barrier to the sent calls. It is the first fresh entry, and `append` sends it behind
    /// the calls that it writes again.
    pub(super) fn begin_replay(&mut self, at: Timestamp, submitted: Duration) {
        let call = PendingCall::without_caller(at, submitted, Command::Barrier);
        self.fresh_from = self.next_sequence;
        self.pending_bytes += call.size;
        self.send(call);
    }

    pub(super) fn send(&mut self, call: PendingCall) -> Entry {
        let sent = SentCall { sequence: self.next_sequence, call };
        self.next_sequence += 1;
        self.sent_bytes += sent.call.size;
        sent.call.was_sent.store(true, Ordering::Relaxed);
        let entry = sent.to_entry(self.producer_id);
        self.sent.push_back(sent);
        entry
    }

    /// Removes the oldest sent call if it has this number.
    pub(super) fn complete(&mut self, sequence: u64) -> Option<PendingCall> {
        if self.sent.front()?.sequence != sequence {
            return None;
        }
        let SentCall { call, .. } = self.sent.pop_front()?;
        self.pending_bytes -= call.size;
        self.sent_bytes -= call.size;
        Some(call)
    }

    /// Begins a new sequence with a new producer id, because under the old id nobody could fill the
    /// gap: the missing entries were read back before. Entries after the gap have no effect, so no
    /// call takes effect twice.
    pub(super) fn renumber(&mut self, producer_id: u64) {
        self.producer_id = producer_id;
        self.fresh_from = 1;
        for (sequence, sent) in (1..).zip(&mut self.sent) {
            sent.sequence = sequence;
        }
        self.next_sequence = self.sent.len() as u64 + 1;
    }

    /// Replaces a sent call by a barrier if its caller has given up, because it should not take
    /// effect this late. A late snapshot part changes no job, and a late `End` completes its
    /// snapshot.
    pub(super) fn abandon_if_gone(&mut self, index: usize) {
        let call = &mut self.sent[index].call;
        if call.is_abandoned() && !matches!(call.command, Command::Snapshot(_)) {
            let size_before = call.size;
            call.command = Command::Barrier;
            call.size = call.command.size();
            let freed = size_before - call.size;
            self.pending_bytes -= freed;
            self.sent_bytes -= freed;
        }
    }

    pub(super) fn clear(&mut self) {
        self.unsent.clear();
        self.sent.clear();
        (self.pending_bytes, self.sent_bytes) = (0, 0);
    }
}

/// Where and when an entry was applied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AppliedAt {
    /// The offset of its message.
    pub(crate) offset: u64,
    /// By the entry's writer's clock.
    pub(crate) now: Timestamp,
    /// Whether the entry begins the snapshot in progress. `false` if another one is in progress.
    pub(crate) begins_snapshot: bool,
}

pub(super) trait Waiter: Send {
    fn is_gone(&self) -> bool;

    fn deliver(self: Box<Self>, replica: &mut Replica, reply: CommandReply, at: AppliedAt);
}

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
        let _ = self.result.send((self.read)(replica, reply, at));
    }
}
