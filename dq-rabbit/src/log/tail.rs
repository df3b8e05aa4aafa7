//! Reads the log as it grows, applies its entries to the replica, and completes the calls of this
//! process whose entries it reads.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{Error, ErrorKind, Result};
use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicQosOptions};
use lapin::{Channel, Consumer};

use super::cache::MessageCache;
use super::command::{Barrier, CommandReply};
use super::pending::AppliedAt;
use super::replica::{Applied, Replica};
use super::retention::Retention;
use super::shared::{LogShared, LogState};
use super::start::find_snapshot;
use super::stream::{READ_OPERATION, StreamStart, consume, offset_of, read_error};
use super::wire::{self, Command, Entry};
use crate::error::LostReply;

/// Maximum number of unacknowledged messages that the broker delivers.
const PREFETCH: u16 = 256;
/// Maximum number of messages that are applied and acknowledged together.
const BATCH: usize = 64;
/// How long to wait for the message at a given offset, and then for the broker's reply to another
/// request, which shows whether the broker responds at all.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// After this many failed attempts to read, another node is tried: this one may have no replica of
/// the stream, or one that does not start.
const ATTEMPTS_PER_NODE: usize = 20;
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Reads until it is dropped, or until the log holds an entry that cannot be decoded.
pub(super) async fn run(shared: Arc<LogShared>) {
    let mut is_retry = false;
    let mut failures = 0;
    let mut use_snapshot = true;
    loop {
        if std::mem::replace(&mut is_retry, true) {
            shared.clock.sleep(PAUSE).await;
            // The log may have been deleted, or the broker may be back with an empty disk.
            if !shared.redeclare().await {
                continue;
            }
        }
        match read(&shared, use_snapshot).await {
            Ok(ended) => {
                tracing::debug!(?ended, "reading the log starts again");
                failures = 0;
                use_snapshot = ended != ReadEnd::WrongSnapshot;
            }
            Err(ReadFailure::Contents(error)) => {
                shared.fail(error);
                return;
            }
            Err(ReadFailure::Broker(error)) => {
                tracing::debug!(%error, "the log cannot be read now");
                shared.record_error(error);
                failures = if shared.consume.failure().is_none() { failures + 1 } else { 0 };
                if failures == ATTEMPTS_PER_NODE {
                    failures = 0;
                    shared.switch_node();
                }
            }
        }
    }
}

/// Why reading starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadEnd {
    /// The channel was closed, or `append` reported that confirmed entries are not read back.
    ChannelClosed,
    /// The log is not the one that was read before, or has lost messages.
    LogReplaced,
    /// There was no complete snapshot at the offset that a message named.
    WrongSnapshot,
}

/// Why reading failed.
enum ReadFailure {
    /// The broker refused or did not reply. Retried, even if the error is not retryable.
    Broker(Error),
    /// The log holds an entry that cannot be decoded. Not retried.
    Contents(Error),
}

impl From<Error> for ReadFailure {
    fn from(error: Error) -> Self {
        Self::Broker(error)
    }
}

/// Reads on one channel until it is closed. Starts at the message that was read last, else at a
/// snapshot if `use_snapshot`, else at the first message.
async fn read(shared: &Arc<LogShared>, use_snapshot: bool) -> Result<ReadEnd, ReadFailure> {
    let last = last_read(shared);
    let hint = match &last {
        None if use_snapshot => find_snapshot(shared).await?,
        _ => None,
    };
    let start = match (&last, hint) {
        (Some((offset, _)), _) => StreamStart::Offset(*offset),
        (None, Some(hint)) => StreamStart::Offset(hint.begin),
        (None, None) => StreamStart::First,
    };
    let (channel, mut consumer) = consume(shared, start, PREFETCH).await?;
    let mut last_again = None;
    if let Some(last) = &last {
        last_again = read_again(shared, &channel, last, &mut consumer).await?;
        if last_again.is_none() {
            reset(shared);
            return Ok(ReadEnd::LogReplaced);
        }
    }
    loop {
        let delivery = match last_again.take() {
            Some(last_again) => Some(Ok(last_again)),
            None => tokio::select! {
                delivery = consumer.next() => delivery,
                () = shared.reader_stuck.notified() => None,
            },
        };
        let Some(delivery) = delivery else { return Ok(ReadEnd::ChannelClosed) };
        let mut batch = vec![delivery];
        while batch.len() < BATCH {
            match consumer.next().now_or_never() {
                Some(Some(delivery)) => batch.push(delivery),
                _ => break,
            }
        }
        let mut last_tag = None;
        let mut messages = Vec::with_capacity(batch.len());
        for delivery in batch {
            let delivery = delivery.map_err(|error| read_error(shared, &error))?;
            last_tag = Some(delivery.delivery_tag);
            let offset = offset_of(&delivery).map_err(ReadFailure::Contents)?;
            messages.push((offset, Bytes::from(delivery.data)));
        }
        if has_gap(shared, &messages) && !next_is_retained(shared).await? {
            tracing::warn!(
                "the broker deleted messages before they were read; the log is replayed"
            );
            reset(shared);
            return Ok(ReadEnd::LogReplaced);
        }
        apply_all(shared, messages).map_err(ReadFailure::Contents)?;
        if hint.is_some_and(|hint| is_unknown_after(shared, hint.announced_at)) {
            tracing::warn!(
                "the newest snapshot in the log is incomplete; all of the log is replayed"
            );
            reset(shared);
            return Ok(ReadEnd::WrongSnapshot);
        }
        if let Some(tag) = last_tag {
            let acked = channel.basic_ack(tag, BasicAckOptions { multiple: true }).await;
            acked.map_err(|error| read_error(shared, &error))?;
        }
    }
}

/// Whether all messages up to this offset have been read and no snapshot is complete yet. At the
/// message that names a snapshot, the whole snapshot must have been read.
fn is_unknown_after(shared: &LogShared, offset: u64) -> bool {
    let state = shared.state();
    state.next_offset.is_some_and(|next| next > offset) && !state.replica.is_ready()
}

/// Whether offsets are missing before or between these messages. A gap is not yet a proof of loss:
/// the broker also uses offsets for records of its own, which it does not deliver.
fn has_gap(shared: &LogShared, messages: &[(u64, Bytes)]) -> bool {
    let mut next = shared.state().next_offset;
    messages.iter().any(|(offset, _)| {
        let is_gap = next.is_some_and(|next| *offset > next);
        next = Some(offset + 1);
        is_gap
    })
}

/// Whether the log still has the message to be read next: its oldest message is not a later one.
async fn next_is_retained(shared: &LogShared) -> Result<bool> {
    let next = shared.state().next_offset;
    let (_channel, mut consumer) = consume(shared, StreamStart::First, 1).await?;
    match tokio::time::timeout(shared.settings.response_timeout, consumer.next()).await {
        Ok(Some(Ok(oldest))) => {
            let oldest = offset_of(&oldest)?;
            Ok(next.is_none_or(|next| oldest <= next))
        }
        Ok(Some(Err(error))) => Err(read_error(shared, &error)),
        Ok(None) | Err(_) => Err(shared.timeout_error(READ_OPERATION, LostReply::Unavailable)),
    }
}

/// The message that was read last, and its offset.
fn last_read(shared: &LogShared) -> Option<(u64, Bytes)> {
    let state = shared.state();
    state.next_offset?;
    state.cache.last()
}

/// Reads the last message again, to verify that this is still the log that was read before. `None`
/// if the log has another message there or has lost its end: then the broker waits for that offset
/// and delivers nothing.
async fn read_again(
    shared: &LogShared,
    channel: &Channel,
    (offset, message): &(u64, Bytes),
    consumer: &mut Consumer,
) -> Result<Option<Delivery>> {
    let failed = |error| read_error(shared, &error);
    let cancelled = || {
        Error::new(ErrorKind::Unavailable, "the broker cancelled the consumer of the log")
            .operation(READ_OPERATION)
    };
    let Ok(delivery) = tokio::time::timeout(PROBE_TIMEOUT, consumer.next()).await else {
        // The message is really missing only if the broker replies to another request.
        let probe = channel.basic_qos(PREFETCH, BasicQosOptions::default());
        match tokio::time::timeout(PROBE_TIMEOUT, probe).await {
            Ok(reply) => reply.map_err(failed)?,
            Err(_) => return Err(shared.timeout_error(READ_OPERATION, LostReply::Unavailable)),
        }
        tracing::warn!(offset, "the log has lost the message that was read last; it is replayed");
        return Ok(None);
    };
    let delivery = delivery.ok_or_else(cancelled)?.map_err(failed)?;
    if (offset_of(&delivery)?, &delivery.data[..]) == (*offset, &message[..]) {
        return Ok(Some(delivery));
    }
    tracing::warn!(offset, "the log was truncated or deleted; it is replayed");
    Ok(None)
}

/// Forgets everything that was read, so that the log is replayed. Wakes all listeners once the
/// replay is over, because hints may have been lost.
fn reset(shared: &Arc<LogShared>) {
    {
        let mut state = shared.state();
        state.next_offset = None;
        state.replica = Replica::unread();
        state.cache = MessageCache::default();
        state.retention = Retention::unread(shared.settings.size);
    }
    shared.caught_up.store(false, Ordering::Relaxed);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let caught_up = async {
            while shared
                .call(READ_OPERATION, LostReply::Unavailable, Barrier, |_, (), _| ())
                .await
                .is_err()
            {
                shared.clock.sleep(PAUSE).await;
            }
        };
        if shared.stop.run_until_cancelled(caught_up).await.is_some() {
            shared.listeners.wake_all(shared.clock.now());
        }
    });
}

/// Applies messages in order, and wakes the listeners of queues whose next due time is now earlier.
fn apply_all(shared: &LogShared, messages: Vec<(u64, Bytes)>) -> Result<()> {
    let earlier = {
        let mut state = shared.state();
        for (offset, message) in messages {
            if state.next_offset.is_some_and(|next| offset < next) {
                // The last message is read again when reading starts again.
                continue;
            }
            if state.next_offset.is_none() {
                state.replica = Replica::starting_at(offset);
                state.retention = Retention::starting_at(shared.settings.size, offset);
            }
            let entries = wire::decode(&message)?.entries;
            state.retention.add_message(message.len() as u64);
            state.cache.push(offset, message);
            state.next_offset = Some(offset + 1);
            for (index, entry) in entries.into_iter().enumerate() {
                let size = entry.command.approx_size() as u64;
                state.retention.observe(offset, &entry.command, size, shared.clock.now());
                apply(shared, &mut state, offset, index as u32, entry);
            }
            shared.messages_read.fetch_add(1, Ordering::Relaxed);
        }
        if state.replica.is_ready() { state.replica.machine().take_hints() } else { Vec::new() }
    };
    for (queue, due) in earlier {
        shared.listeners.wake(&queue, due);
    }
    Ok(())
}

fn apply(shared: &LogShared, state: &mut LogState, offset: u64, index: u32, entry: Entry) {
    let (sequence, now) = (entry.sequence, entry.at);
    let is_own = entry.producer_id == state.producer_id;
    let is_barrier = matches!(entry.command, Command::Barrier);
    match state.replica.apply(offset, index, entry) {
        Applied::Reply(reply) if is_own => {
            let begins_snapshot = state.retention.is_in_progress(offset);
            let at = AppliedAt { offset, now, begins_snapshot };
            complete(shared, state, sequence, Some(reply), at);
            if state.needs_snapshot(shared.clock.now()) {
                shared.snapshot_due.notify_one();
            }
        }
        Applied::Duplicate if is_own => {
            // If the call still waits, the entry took effect before the snapshot from which the
            // replica was restored. Its reply is lost, except for a barrier, which has no result.
            let at = AppliedAt { offset, now, begins_snapshot: false };
            let reply = is_barrier.then_some(CommandReply::Done);
            complete(shared, state, sequence, reply, at);
        }
        Applied::Gap { last } if is_own => {
            let first_pending = state.sent_calls.front().map_or(sequence, |sent| sent.sequence);
            // Entries are missing before the first one that can be sent again: the log has lost its
            // newest messages, after this process had read them.
            state.sequence_lost |= first_pending > last + 1;
            shared.resend.notify_one();
        }
        Applied::Reply(_) | Applied::Duplicate | Applied::Gap { .. } => {}
        // Entries are collected until a snapshot is complete; `restore` then adopts it and returns
        // the entries to apply after it. Before that it returns none.
        Applied::Deferred => {
            for (offset, index, entry) in state.replica.restore() {
                apply(shared, state, offset, index, entry);
            }
        }
    }
}

/// Completes the oldest sent call if it has this sequence number. With `None`, its waiter is
/// dropped without a reply, and the call fails with `OutcomeUnknown`.
fn complete(
    shared: &LogShared,
    state: &mut LogState,
    sequence: u64,
    reply: Option<CommandReply>,
    at: AppliedAt,
) {
    if state.sent_calls.front().is_none_or(|sent| sent.sequence != sequence) {
        return;
    }
    let Some(sent) = state.sent_calls.pop_front() else { return };
    state.pending_bytes -= sent.call.size;
    if let Some(reply) = reply {
        shared.caught_up.store(true, Ordering::Relaxed);
        shared.clear_error();
        sent.call.waiter.deliver(&mut state.replica, reply, at);
    }
}
