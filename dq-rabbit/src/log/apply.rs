//! Applies the messages that `tail` has read, and completes this process's calls.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use dq_core::Result;
use dq_core::machine::MachineHint;
use dq_core::sync::lock;

use super::generation::Generation;
use super::generation::retention::SnapshotStep;
use super::pending::AppliedAt;
use super::reply::CommandReply;
use super::shared::{LogShared, LogState};
use super::state::replica::{Applied, Replica};
use super::wire::{self, Command, Entry, Message};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    All,
    /// One message has to be read again, because it was damaged.
    Suspect,
}

/// Applies messages, each with its offset in the log, and wakes listeners.
pub(super) fn apply_all(shared: &LogShared, messages: Vec<(u64, Bytes)>) -> Result<Progress> {
    // All messages have been read by now, so their leases last from now on.
    let read_at = shared.clock.elapsed();
    let mut progress = Progress::All;
    let earlier = {
        let state = &mut *shared.state();
        for (offset, message) in messages {
            if state.next_offset.is_some_and(|next| offset < next) {
                // The last message is read again when reading restarts.
                continue;
            }
            if progress == Progress::Suspect {
                if let Message::Skipped(reason) = wire::decode(&message)? {
                    state.suspects.may_skip(offset, reason, &message);
                }
                continue;
            }
            progress = apply_message(shared, state, read_at, offset, message)?;
            if state.replica.is_closed() {
                go_on_in_next_generation(shared, state, offset);
                break;
            }
        }
        if state.replica.is_ready() { state.replica.machine().take_hints() } else { Vec::new() }
    };
    for MachineHint { queue, due, worker } in &earlier {
        match worker {
            // Perhaps in another process.
            Some(worker) => drop(shared.listeners.wake_if_present(queue, worker, *due)),
            None => shared.listeners.wake(queue, *due),
        }
    }
    Ok(progress)
}

fn apply_message(
    shared: &LogShared,
    state: &mut LogState,
    read_at: Duration,
    offset: u64,
    message: Bytes,
) -> Result<Progress> {
    if state.next_offset.is_none() {
        state.replica = Replica::starting_at(offset);
    }
    let entries = match wire::decode(&message)? {
        Message::Entries(entries) => entries,
        Message::Skipped(reason) if !state.suspects.may_skip(offset, reason, &message) => {
            tracing::warn!(offset, "a message in the log is read again before it is skipped");
            return Ok(Progress::Suspect);
        }
        Message::Skipped(reason) => {
            state.skipped.count(offset, reason);
            Vec::new()
        }
    };
    state.suspects.forget_before(offset + 1);
    state.retention.add_message(message.len() as u64);
    state.cache.push(offset, message);
    state.next_offset = Some(offset + 1);
    for (index, entry) in (0..).zip(entries) {
        state.retention.add_entry(&entry.command);
        apply(shared, state, read_at, offset, index, entry);
        if state.replica.is_closed() {
            break;
        }
    }
    shared.messages_read.fetch_add(1, Ordering::Relaxed);
    Ok(Progress::All)
}

/// The writers write the rest of the closed generation again.
fn go_on_in_next_generation(shared: &LogShared, state: &mut LogState, close_offset: u64) {
    let next = Generation::of(close_offset).next();
    state.begin_generation(next, shared.log_size, shared.clock.elapsed());
    state.next_offset = Some(next.offset(0));
    shared.may_be_behind.store(true, Ordering::Relaxed);
    shared.moved.notify_one();
}

/// Applies the entry at this index of the message at this offset.
fn apply(
    shared: &LogShared,
    state: &mut LogState,
    read_at: Duration,
    offset: u64,
    index: u32,
    entry: Entry,
) {
    let (sequence, now) = (entry.sequence, entry.at);
    let is_own = entry.producer_id == state.outbox.producer_id;
    let is_barrier = matches!(entry.command, Command::Barrier);
    let snapshot_step = SnapshotStep::of(&entry.command);
    // For an own call, this process holds the lease, and has counted since the call.
    let own_call = state.outbox.sent.front().filter(|sent| is_own && sent.sequence == sequence);
    state.replica.set_seen(own_call.map_or(read_at, |sent| sent.call.submitted));
    let applied = state.replica.apply(offset, index, entry);
    if let (Applied::Reply(_), Some(step)) = (&applied, snapshot_step) {
        state.retention.observe(offset, step, shared.clock.elapsed());
    }
    match applied {
        Applied::Reply(reply) if is_own => {
            let begins_snapshot = state.retention.is_in_progress(offset);
            let at = AppliedAt { offset, now, begins_snapshot };
            complete(shared, state, sequence, Some(reply), at);
            if state.needs_compaction(shared.clock.elapsed()) {
                shared.compaction_due.notify_one();
            }
        }
        Applied::Duplicate if is_own => {
            // A waiting call took effect before the restored snapshot. Its reply is lost, except a
            // barrier's, which has no result.
            let at = AppliedAt { offset, now, begins_snapshot: false };
            let reply = is_barrier.then_some(CommandReply::Done);
            complete(shared, state, sequence, reply, at);
        }
        Applied::Gap { last } if is_own => {
            let first_pending = state.outbox.sent.front().map_or(sequence, |sent| sent.sequence);
            // The log has lost entries that were read back. Only a fresh entry shows it: earlier
            // ones may be copies that followed a gap.
            state.outbox.sequence_lost |=
                sequence >= state.outbox.fresh_from && first_pending > last + 1;
            shared.has_gap.notify_one();
        }
        Applied::Reply(_) | Applied::Duplicate | Applied::Gap { .. } => {}
        Applied::Deferred => {
            state.replica.set_seen(read_at);
            // A fresh entry that this process waits for is at the log's end, so no snapshot
            // follows.
            let is_awaited =
                state.outbox.sent.front().is_some_and(|sent| sent.sequence <= sequence);
            state.lacks_snapshot |= is_own && is_awaited && sequence >= state.outbox.fresh_from;
            restore(shared, state, read_at);
        }
    }
}

/// Restores the replica if a snapshot is complete, and applies the entries since its beginning.
fn restore(shared: &LogShared, state: &mut LogState, read_at: Duration) {
    let later_entries = state.replica.restore();
    if state.replica.is_ready() {
        state.retention.complete();
        state.lacks_snapshot = false;
    }
    for (offset, index, entry) in later_entries {
        apply(shared, state, read_at, offset, index, entry);
    }
}

/// Completes the oldest sent call if it has this number. Without a reply, the call fails with
/// `OutcomeUnknown`.
fn complete(
    shared: &LogShared,
    state: &mut LogState,
    sequence: u64,
    reply: Option<CommandReply>,
    at: AppliedAt,
) {
    let Some(call) = state.outbox.complete(sequence) else { return };
    shared.read_back.notify_one();
    if let Some(reply) = reply {
        shared.caught_up.store(true, Ordering::Relaxed);
        shared.may_be_behind.store(false, Ordering::Relaxed);
        lock(&shared.last_error).take();
        call.deliver(&mut state.replica, reply, at);
    }
}
