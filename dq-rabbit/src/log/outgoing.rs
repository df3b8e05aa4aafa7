//! Makes messages of calls: new ones that may be sent, and sent ones that were not read back.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::generation::Generation;
use super::pending::{AppliedAt, PendingCall, SentCall};
use super::reply::CommandReply;
use super::shared::{LogShared, LogState, is_lasting, random_id};
use super::wire::{Entry, encode};

/// A message is complete at about this size.
const MESSAGE_BYTES: usize = 256 * 1024;

pub(super) struct OutgoingMessage {
    pub(super) generation: Generation,
    pub(super) body: Vec<u8>,
}

/// Encodes the calls again that were not read back, in at most `max_messages` messages. Also
/// returns their last sequence number, without a replay's barrier.
pub(super) fn rewrite(
    shared: &LogShared,
    max_messages: usize,
) -> (Vec<OutgoingMessage>, Option<u64>) {
    let state = &mut *shared.state();
    // `moved` comes with the generation.
    let Some(generation) = state.generation else { return (Vec::new(), None) };
    let message = |entries: &[Entry]| OutgoingMessage { generation, body: encode(entries) };
    if std::mem::take(&mut state.outbox.sequence_lost) {
        state.outbox.renumber(random_id(&shared.entropy));
    }
    let mut messages = Vec::new();
    let mut entries = Vec::new();
    let (mut bytes, mut last) = (0, None);
    for index in 0..state.outbox.sent.len() {
        if messages.len() == max_messages {
            break;
        }
        state.outbox.abandon_if_gone(index);
        let sent = &state.outbox.sent[index];
        bytes += sent.call.size;
        last = Some(sent.sequence);
        entries.push(sent.to_entry(state.outbox.producer_id));
        if bytes >= MESSAGE_BYTES {
            messages.push(message(&entries));
            entries.clear();
            bytes = 0;
        }
    }
    // A replay's barrier shows whether something is missing before it.
    let fresh_from = state.outbox.fresh_from;
    let is_barrier = |sent: &&SentCall| sent.sequence == fresh_from && last < Some(fresh_from);
    let barrier = state.outbox.sent.iter().find(is_barrier);
    entries.extend(barrier.map(|sent| sent.to_entry(state.outbox.producer_id)));
    if !entries.is_empty() {
        messages.push(message(&entries));
    }
    state.outbox.written = Some(generation);
    (messages, last)
}

/// Unsent calls after a message was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backlog {
    Empty,
    NextMessage,
    /// There may be no room for them, depending on the calls under way.
    AwaitsReply,
    AwaitsGeneration,
}

pub(super) fn next_message(shared: &LogShared) -> (Option<OutgoingMessage>, Backlog) {
    let state = &mut *shared.state();
    let Some(generation) = state.generation else { return (None, Backlog::AwaitsReply) };
    if state.outbox.written != Some(generation) && !state.outbox.sent.is_empty() {
        // The calls sent before are not in this generation. `moved` comes, and they are written
        // first.
        return (None, Backlog::AwaitsReply);
    }
    state.outbox.written = Some(generation);
    let mut entries = Vec::new();
    let mut bytes = 0;
    let mut held_back = VecDeque::new();
    let mut backlog = Backlog::Empty;
    while bytes < MESSAGE_BYTES {
        let Some(call) = state.outbox.unsent.pop_front() else { break };
        match admit(shared, state, &call) {
            Admission::Send => {
                bytes += call.size;
                entries.push(state.outbox.send(call));
            }
            Admission::Refuse => {
                state.outbox.pending_bytes -= call.size;
                let offset = state.next_offset.unwrap_or_default();
                let at = AppliedAt { offset, now: call.at, begins_snapshot: false };
                call.deliver(&mut state.replica, CommandReply::Full, at);
            }
            Admission::Drop => state.outbox.pending_bytes -= call.size,
            Admission::Hold(why) => {
                backlog = why;
                held_back.push_back(call);
            }
        }
    }
    if !state.outbox.unsent.is_empty() {
        backlog = Backlog::NextMessage;
    }
    held_back.append(&mut state.outbox.unsent);
    state.outbox.unsent = held_back;
    let message = || OutgoingMessage { generation, body: encode(&entries) };
    ((!entries.is_empty()).then(message), backlog)
}

enum Admission {
    Send,
    Hold(Backlog),
    Refuse,
    /// Nobody waits for the call, or an operator has to make the next generation possible; the
    /// caller then finds out why.
    Drop,
}

/// Only new jobs may have to wait. Everything else may free the log, and a settlement must not wait
/// until its lease has expired.
fn admit(shared: &LogShared, state: &mut LogState, call: &PendingCall) -> Admission {
    if call.is_abandoned() {
        // Without a sequence number it leaves no gap. The writer of an abandoned snapshot begins
        // another one.
        return Admission::Drop;
    }
    if !call.command.adds_jobs() {
        return Admission::Send;
    }
    // The kept generations should not take more disk space.
    if state.blocks_growth() {
        return match &state.change_failure {
            Some(error) if is_lasting(error) => {
                shared.compaction_due.notify_one();
                Admission::Drop
            }
            _ => Admission::Hold(Backlog::AwaitsGeneration),
        };
    }
    // Better not write payloads that the log would refuse. A replay does not know the present
    // state.
    if !shared.caught_up.load(Ordering::Relaxed) {
        return Admission::Send;
    }
    let jobs = call.command.new_jobs();
    if !state.replica.has_room(0, jobs.iter().copied()) {
        Admission::Refuse
    } else if !state.replica.has_room(state.outbox.sent_bytes as u64, jobs) {
        Admission::Hold(Backlog::AwaitsReply)
    } else {
        Admission::Send
    }
}
