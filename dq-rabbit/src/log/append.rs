//! Appends calls to the log. All calls that gather while earlier messages are sent become one
//! message of the stream.
//!
//! A call takes effect when its entry is read back, not when the broker confirms the message. Until
//! then, its entry may be sent any number of times:
//! [`Replica::apply`](super::replica::Replica::apply) ignores duplicates by their sequence numbers,
//! and everything after a gap.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation};

use super::pending::SentCall;
use super::shared::{LogShared, LogState, random_id};
use super::wire::{Command, Entry, encode};
use crate::error::{LostReply, from_lapin, unconfirmed_reason};

/// A message is complete once it has this many bytes, approximately.
const MESSAGE_BYTES: usize = 256 * 1024;
/// Maximum number of unconfirmed messages.
const MAX_UNCONFIRMED: usize = 32;
/// Calls are sent again if none of them has been read back for this long.
const RESEND_AFTER: Duration = Duration::from_secs(3);
/// After this many resends without progress, another node is tried: this one may be partitioned
/// from the others without having noticed.
const RESENDS_PER_NODE: usize = 4;
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// The operation that errors of appending name.
const APPEND_OPERATION: &str = "write the log";

/// Appends until it is dropped.
pub(super) async fn run(shared: Arc<LogShared>) {
    loop {
        let (channel, generation) = match open(&shared).await {
            Ok(opened) => opened,
            Err(error) => {
                tracing::debug!(%error, "the log cannot be written now");
                shared.clock.sleep(PAUSE).await;
                continue;
            }
        };
        if let Err(error) = append(&shared, &channel, generation).await {
            tracing::debug!(%error, "the channel that appends to the log failed; another is opened");
            shared.clock.sleep(PAUSE).await;
            if shared.publish.failure().is_none() {
                // The connection is up, so the exchange is missing, or the permission to use it.
                let broker = shared.publish.broker_info();
                shared.record_error(from_lapin(
                    APPEND_OPERATION,
                    LostReply::Unavailable,
                    broker,
                    &error,
                ));
                shared.redeclare().await;
            }
        }
    }
}

async fn open(shared: &LogShared) -> dq_core::Result<(Channel, u64)> {
    let (channel, generation) = shared.publish.open(APPEND_OPERATION).await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(|error| {
        from_lapin(APPEND_OPERATION, LostReply::Unavailable, shared.publish.broker_info(), &error)
    })?;
    Ok((channel, generation))
}

/// Appends on one channel until it fails. First sends all calls again that were sent and not read
/// back.
async fn append(
    shared: &LogShared,
    channel: &Channel,
    generation: u64,
) -> Result<(), lapin::Error> {
    let mut confirms = FuturesUnordered::new();
    let mut messages = resend(shared);
    let mut awaits_snapshot = false;
    // The sequence number of the oldest call that was sent and not read back, how often it was sent
    // again, and the time until it is sent again.
    let (mut oldest, mut resends, mut resend_timer) = (None, 0, shared.clock.sleep(RESEND_AFTER));
    let mut messages_read = 0;
    loop {
        for message in messages.drain(..) {
            confirms.push(publish(shared, channel, &message).await?);
        }
        // While the broker blocks the connection, the client would buffer messages, and send them
        // long after their callers have given up.
        let blocked = shared.publish.blocked().is_some();
        let current_oldest = shared.state().sent_calls.front().map(|sent| sent.sequence);
        if current_oldest != oldest || blocked {
            oldest = current_oldest;
            resends = 0;
            resend_timer = shared.clock.sleep(RESEND_AFTER);
        }
        tokio::select! {
            () = shared.call_submitted.notified(),
                if !blocked && confirms.len() < MAX_UNCONFIRMED =>
            {
                messages.extend(next_message(shared));
                awaits_snapshot = false;
                match backlog(shared) {
                    Backlog::Empty => {}
                    Backlog::NextMessage => shared.call_submitted.notify_one(),
                    Backlog::AwaitsSnapshot => {
                        if shared.state().needs_snapshot(shared.clock.now()) {
                            shared.snapshot_due.notify_one();
                        }
                        awaits_snapshot = true;
                    }
                }
            }
            Some(confirmed) = confirms.next() => match confirmed? {
                Confirmation::Ack(None) | Confirmation::NotRequested => {}
                refused => {
                    let why = unconfirmed_reason(&refused);
                    tracing::warn!(why, "the broker refused a message for the log");
                    shared.clock.sleep(PAUSE).await;
                    shared.redeclare().await;
                    return Ok(());
                }
            },
            () = shared.publish.lost(generation) => return Ok(()),
            () = shared.resend.notified() => messages = resend(shared),
            () = shared.clock.sleep(PAUSE), if awaits_snapshot => {
                shared.call_submitted.notify_one();
            }
            () = &mut resend_timer, if oldest.is_some() && !blocked => {
                resend_timer = shared.clock.sleep(RESEND_AFTER);
                // Replaying a long log takes time, and loses nothing.
                let read = shared.messages_read.load(Ordering::Relaxed);
                if std::mem::replace(&mut messages_read, read) != read
                    && !shared.caught_up.load(Ordering::Relaxed)
                {
                    continue;
                }
                resends += 1;
                if resends == RESENDS_PER_NODE {
                    shared.switch_node();
                    return Ok(());
                }
                if confirms.is_empty() {
                    // The broker has confirmed all messages, so the reader must be stuck: it may
                    // wait for an offset that was truncated.
                    shared.reader_stuck.notify_one();
                }
                messages = resend(shared);
            }
            () = shared.clock.sleep(PAUSE), if blocked => {}
        }
    }
}

async fn publish(
    shared: &LogShared,
    channel: &Channel,
    message: &[u8],
) -> Result<lapin::PublisherConfirm, lapin::Error> {
    channel
        .basic_publish(
            shared.topology.names().log(),
            "".into(),
            BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() },
            message,
            BasicProperties::default().with_delivery_mode(2),
        )
        .await
}

/// The messages that send all calls again that were sent and not read back.
fn resend(shared: &LogShared) -> Vec<Vec<u8>> {
    let state = &mut *shared.state();
    if std::mem::take(&mut state.sequence_lost) {
        // With the old producer id, all replicas would see a gap that cannot be filled.
        state.producer_id = random_id(&shared.entropy);
        state.next_sequence = 1;
        for sent in &mut state.sent_calls {
            sent.sequence = state.next_sequence;
            state.next_sequence += 1;
        }
    }
    let producer_id = state.producer_id;
    let replay_from = state.retention.replay_from();
    let mut messages = Vec::new();
    let mut entries = Vec::new();
    let mut bytes = 0;
    for SentCall { sequence, call } in &mut state.sent_calls {
        // A call whose caller has given up should not take effect this late. If it did take effect,
        // this entry is a duplicate and is ignored.
        if call.waiter.is_gone() && !matches!(call.command, Command::Snapshot(_)) {
            state.pending_bytes -= call.size;
            call.command = Command::Barrier;
            call.size = call.command.approx_size();
            state.pending_bytes += call.size;
        }
        bytes += call.size;
        let command = call.command.clone();
        entries.push(Entry { producer_id, sequence: *sequence, at: call.at, command });
        if bytes >= MESSAGE_BYTES {
            messages.push(encode(replay_from, &entries));
            entries.clear();
            bytes = 0;
        }
    }
    if !entries.is_empty() {
        messages.push(encode(replay_from, &entries));
    }
    messages
}

/// The unsent calls that remain after a message was made.
enum Backlog {
    Empty,
    /// Calls that did not fit into the message: they go into the next one.
    NextMessage,
    /// Calls that must wait until a snapshot is complete.
    AwaitsSnapshot,
}

fn backlog(shared: &LogShared) -> Backlog {
    let state = shared.state();
    if state.unsent_calls.is_empty() {
        Backlog::Empty
    } else if state.retention.blocks_appends() {
        Backlog::AwaitsSnapshot
    } else {
        Backlog::NextMessage
    }
}

/// Makes one message of unsent calls; `None` if there are none that may be sent.
fn next_message(shared: &LogShared) -> Option<Vec<u8>> {
    let state = &mut *shared.state();
    let mut entries = Vec::new();
    let mut bytes = 0;
    // When the broker might soon delete live data, only snapshots are appended.
    let only_snapshots = state.retention.blocks_appends();
    let mut held_back = VecDeque::new();
    while bytes < MESSAGE_BYTES {
        let Some(call) = state.unsent_calls.pop_front() else { break };
        if call.waiter.is_gone() {
            state.pending_bytes -= call.size;
            continue;
        }
        if only_snapshots && !matches!(call.command, Command::Snapshot(_)) {
            held_back.push_back(call);
            continue;
        }
        bytes += call.size;
        let LogState { producer_id, next_sequence: sequence, .. } = *state;
        state.next_sequence += 1;
        call.was_sent.store(true, Ordering::Relaxed);
        entries.push(Entry { producer_id, sequence, at: call.at, command: call.command.clone() });
        state.sent_calls.push_back(SentCall { sequence, call });
    }
    held_back.append(&mut state.unsent_calls);
    state.unsent_calls = held_back;
    (!entries.is_empty()).then(|| encode(state.retention.replay_from(), &entries))
}
