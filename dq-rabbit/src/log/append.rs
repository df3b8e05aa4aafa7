//! Appends calls to the log. Calls that gather while earlier messages are sent become one message.
//!
//! A call takes effect when its entry is read back, not when the broker confirms the message. Until
//! then the entry may be sent any number of times:
//! [`Replica::apply`](crate::log::state::replica::Replica::apply) ignores duplicates, and everything after a
//! gap.
//!
//! A budget limits the bytes that were sent and not read back, so that many processes together
//! cannot fill the log before a snapshot. Rewriting them begins with one message, the *probe*; the
//! others follow when it is read back. So a log that cannot be read is not filled with copies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use lapin::{BasicProperties, Confirmation};

use super::command::CommandReply;
use super::generation::Generation;
use super::pending::{AppliedAt, SentCall};
use super::shared::{LogShared, LogState, is_lasting, random_id};
use super::wire::{Command, Entry, encode};
use crate::connect::{AmqpChannel, Reply};
use crate::error::{Permission, Refusal, from_use, refusal, unconfirmed_reason};

/// A message is complete at about this size.
const MESSAGE_BYTES: usize = 256 * 1024;
const MAX_UNCONFIRMED: usize = 32;
/// All processes together may have this part in flight, and one process this many bytes. Each may
/// always send one message.
const IN_FLIGHT_PART: u64 = 32;
const MAX_IN_FLIGHT: u64 = 4 * 1024 * 1024;
/// Calls are rewritten when none was read back for this long, twice as long each further time.
const REWRITE_AFTER: Duration = Duration::from_secs(2);
/// Instead of this rewrite, another node is tried: a partitioned node may not have noticed.
const REWRITES_PER_NODE: u32 = 3;
/// A process that may be behind postpones a rewrite this often while it reads, because it may be
/// reading other processes' new messages.
const MAX_POSTPONED: u32 = 60;
const PAUSE: Duration = Duration::from_millis(100);

const APPEND_OPERATION: &str = "write the log";

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
                shared.record_error(write_error(&shared, &error));
                if refusal(&error) == Refusal::NotFound {
                    restore(&shared).await;
                }
            }
        }
    }
}

async fn open(shared: &LogShared) -> dq_core::Result<(AmqpChannel, u64)> {
    let (channel, generation) = shared.publish.open(APPEND_OPERATION).await?;
    channel.confirm_select().await.map_err(|error| write_error(shared, &error))?;
    Ok((channel, generation))
}

/// Restores exchange and binding. `tail` restores the stream.
async fn restore(shared: &LogShared) {
    let restoring = async {
        shared.declare_log().await?;
        match shared.generation() {
            Some(generation) => shared.topology.bind_generation(generation).await,
            None => Ok(()),
        }
    };
    if let Err(error) = restoring.await {
        tracing::debug!(%error, "the log cannot be restored now");
        shared.record_error(error);
    }
}

fn write_error(shared: &LogShared, error: &lapin::Error) -> dq_core::Error {
    from_use(APPEND_OPERATION, Permission::Write, shared.publish.broker_info(), error)
}

/// Appends on one channel until it fails. First rewrites the calls that were not read back.
async fn append(
    shared: &LogShared,
    channel: &AmqpChannel,
    generation: u64,
) -> Result<(), lapin::Error> {
    let mut confirms = FuturesUnordered::new();
    // Nothing else is sent before the probe is read back, because it would follow a gap.
    let (mut messages, mut probe) = rewrite(shared, 1);
    let mut awaits_generation = false;
    // The oldest call that was not read back, how often it was rewritten, and when it is next.
    let (mut oldest, mut rewrites, mut postponed) = (None, 0, 0);
    let mut rewrite_timer = shared.clock.sleep(REWRITE_AFTER);
    let mut messages_read = 0;
    loop {
        for message in messages.drain(..) {
            let confirm = publish(shared, channel, &message).await?;
            let generation = message.generation;
            let confirmed = confirm.received_at_last();
            confirms.push(confirmed.map(move |confirmed| confirmed.map(|it| (generation, it))));
        }
        // On a blocked connection, the client library would send messages long after their callers
        // have given up.
        let blocked = shared.publish.blocked().is_some();
        let (current_oldest, has_budget) = {
            let state = shared.state();
            (state.sent_calls.front().map(|sent| sent.sequence), has_budget(shared, &state))
        };
        if current_oldest != oldest || blocked {
            oldest = current_oldest;
            (rewrites, postponed) = (0, 0);
            rewrite_timer = shared.clock.sleep(REWRITE_AFTER);
        }
        if probe.is_some_and(|last| oldest.is_none_or(|oldest| oldest > last)) {
            // Everything sent before the probe has been read too, so the rest is missing.
            (messages, _) = rewrite(shared, usize::MAX);
            probe = None;
            let _ = shared.has_gap.notified().now_or_never();
            continue;
        }
        let may_send =
            !blocked && has_budget && probe.is_none() && confirms.len() < MAX_UNCONFIRMED;
        tokio::select! {
            () = shared.call_submitted.notified(), if may_send => {
                let (message, backlog) = next_message(shared);
                messages.extend(message);
                awaits_generation = backlog == Backlog::AwaitsGeneration;
                match backlog {
                    Backlog::Empty | Backlog::AwaitsReply => {}
                    Backlog::NextMessage => shared.call_submitted.notify_one(),
                    Backlog::AwaitsGeneration => {
                        if shared.state().needs_compaction(shared.clock.elapsed()) {
                            shared.compaction_due.notify_one();
                        }
                    }
                }
            }
            () = shared.read_back.notified() => shared.call_submitted.notify_one(),
            Some(confirmed) = confirms.next() => match confirmed? {
                (_, Confirmation::Ack(None) | Confirmation::NotRequested) => {}
                // It had no effect in the closed generation and is sent again.
                (generation, _) if shared.generation() != Some(generation) => {}
                (_, refused) => {
                    let why = unconfirmed_reason(&refused);
                    tracing::warn!(why, "the broker refused a message for the log");
                    shared.clock.sleep(PAUSE).await;
                    if matches!(refused, Confirmation::Ack(Some(_))) {
                        // Returned: the stream or its binding is missing.
                        restore(shared).await;
                    }
                    return Ok(());
                }
            },
            () = shared.publish.lost(generation) => return Ok(()),
            () = shared.moved.notified() => {
                // Nothing sent before has had an effect, unless it was read back.
                (messages, _) = rewrite(shared, usize::MAX);
                probe = None;
                shared.call_submitted.notify_one();
            }
            // The probe fills the gaps that are reported meanwhile.
            () = shared.has_gap.notified(), if probe.is_none() => {
                (messages, probe) = rewrite(shared, 1);
            }
            () = shared.clock.sleep(PAUSE), if awaits_generation => {
                shared.call_submitted.notify_one();
            }
            () = &mut rewrite_timer, if oldest.is_some() && !blocked => {
                // Reading a long log takes time and loses nothing.
                let read = shared.messages_read.load(Ordering::Relaxed);
                let may_wait =
                    postponed < MAX_POSTPONED || !shared.caught_up.load(Ordering::Relaxed);
                if std::mem::replace(&mut messages_read, read) != read
                    && shared.is_catching_up()
                    && may_wait
                {
                    postponed += 1;
                    rewrite_timer = shared.clock.sleep(REWRITE_AFTER);
                    continue;
                }
                rewrites += 1;
                if rewrites == REWRITES_PER_NODE {
                    shared.switch_node();
                    return Ok(());
                }
                rewrite_timer = shared.clock.sleep(REWRITE_AFTER * 2_u32.pow(rewrites));
                if confirms.is_empty() {
                    // All is confirmed, so the reader is stuck. It may wait for an offset that was
                    // truncated.
                    shared.reader_stuck.notify_one();
                }
                (messages, probe) = rewrite(shared, 1);
            }
            () = shared.clock.sleep(PAUSE), if blocked => {}
        }
    }
}

pub(super) fn has_budget(shared: &LogShared, state: &LogState) -> bool {
    if state.sent_bytes == 0 {
        return true;
    }
    let writers = state.replica.active_producers();
    let share = shared.settings.size / IN_FLIGHT_PART / writers.max(1);
    (state.sent_bytes as u64) < share.min(MAX_IN_FLIGHT)
}

async fn publish(
    shared: &LogShared,
    channel: &AmqpChannel,
    message: &OutgoingMessage,
) -> lapin::Result<Reply<Confirmation>> {
    let properties = BasicProperties::default().with_delivery_mode(2);
    let exchange = shared.topology.names().generations();
    let key = shared.topology.routing_key(message.generation);
    channel.publish(exchange, key, true, &message.body, properties).await
}

pub(super) struct OutgoingMessage {
    generation: Generation,
    body: Vec<u8>,
}

/// Encodes the calls again that were not read back, in at most `max` messages. Also returns their
/// last sequence number, without a replay's barrier.
pub(super) fn rewrite(shared: &LogShared, max: usize) -> (Vec<OutgoingMessage>, Option<u64>) {
    let state = &mut *shared.state();
    // `moved` comes with the generation.
    let Some(generation) = state.generation else { return (Vec::new(), None) };
    let message = |entries: &[Entry]| OutgoingMessage { generation, body: encode(entries) };
    if std::mem::take(&mut state.sequence_lost) {
        // Under the old id, replicas would see a gap that nobody can fill: the missing entries were
        // read back before. Entries after the gap have no effect, so no call takes effect twice
        // under the new id.
        state.producer_id = random_id(&shared.entropy);
        state.next_sequence = 1;
        state.fresh_from = 1;
        for sent in &mut state.sent_calls {
            sent.sequence = state.next_sequence;
            state.next_sequence += 1;
        }
    }
    let producer_id = state.producer_id;
    let mut messages = Vec::new();
    let mut entries = Vec::new();
    let (mut bytes, mut last) = (0, None);
    for SentCall { sequence, call } in &mut state.sent_calls {
        if messages.len() == max {
            break;
        }
        // Its caller has given up, so it should not take effect this late. A late snapshot part
        // changes no job, and a late `End` completes its snapshot.
        if call.waiter.is_gone() && !matches!(call.command, Command::Snapshot(_)) {
            let before = call.size;
            call.command = Command::Barrier;
            call.size = call.command.size();
            state.pending_bytes = state.pending_bytes - before + call.size;
            state.sent_bytes = state.sent_bytes - before + call.size;
        }
        bytes += call.size;
        last = Some(*sequence);
        let command = call.command.clone();
        entries.push(Entry { producer_id, sequence: *sequence, at: call.at, command });
        if bytes >= MESSAGE_BYTES {
            messages.push(message(&entries));
            entries.clear();
            bytes = 0;
        }
    }
    // A replay's barrier shows whether something is missing before it.
    let fresh_from = state.fresh_from;
    let is_barrier = |sent: &&SentCall| sent.sequence == fresh_from && last < Some(fresh_from);
    if let Some(SentCall { sequence, call }) = state.sent_calls.iter().find(is_barrier) {
        let (sequence, command) = (*sequence, call.command.clone());
        entries.push(Entry { producer_id, sequence, at: call.at, command });
    }
    if !entries.is_empty() {
        messages.push(message(&entries));
    }
    state.written = Some(generation);
    (messages, last)
}

/// Unsent calls after a message was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backlog {
    Empty,
    /// They go into the next message.
    NextMessage,
    /// There may be no room for them, depending on the calls under way.
    AwaitsReply,
    /// They wait for the next generation.
    AwaitsGeneration,
}

/// Makes one message of unsent calls that may be sent.
pub(super) fn next_message(shared: &LogShared) -> (Option<OutgoingMessage>, Backlog) {
    let state = &mut *shared.state();
    let Some(generation) = state.generation else { return (None, Backlog::AwaitsReply) };
    if state.written != Some(generation) && !state.sent_calls.is_empty() {
        // The calls sent before are not in this generation. `moved` comes, and they are written
        // first.
        return (None, Backlog::AwaitsReply);
    }
    state.written = Some(generation);
    let mut entries = Vec::new();
    let mut bytes = 0;
    let mut held_back = VecDeque::new();
    let mut backlog = Backlog::Empty;
    while bytes < MESSAGE_BYTES {
        let Some(call) = state.unsent_calls.pop_front() else { break };
        if call.waiter.is_gone() {
            // Without a sequence number it leaves no gap. The writer of an abandoned snapshot
            // begins another one.
            state.pending_bytes -= call.size;
            continue;
        }
        match admission(shared, state, &call.command) {
            Admission::Send => {}
            Admission::Refuse => {
                state.pending_bytes -= call.size;
                let offset = state.next_offset.unwrap_or_default();
                let at = AppliedAt { offset, now: call.at, begins_snapshot: false };
                call.waiter.deliver(&mut state.replica, CommandReply::Full, at);
                continue;
            }
            Admission::Drop => {
                state.pending_bytes -= call.size;
                shared.compaction_due.notify_one();
                continue;
            }
            Admission::Hold(why) => {
                backlog = why;
                held_back.push_back(call);
                continue;
            }
        }
        bytes += call.size;
        let LogState { producer_id, next_sequence: sequence, .. } = *state;
        state.next_sequence += 1;
        state.sent_bytes += call.size;
        call.was_sent.store(true, Ordering::Relaxed);
        entries.push(Entry { producer_id, sequence, at: call.at, command: call.command.clone() });
        state.sent_calls.push_back(SentCall { sequence, call });
    }
    if !state.unsent_calls.is_empty() {
        backlog = Backlog::NextMessage;
    }
    held_back.append(&mut state.unsent_calls);
    state.unsent_calls = held_back;
    let message = || OutgoingMessage { generation, body: encode(&entries) };
    ((!entries.is_empty()).then(message), backlog)
}

enum Admission {
    Send,
    Hold(Backlog),
    /// Its jobs would exceed the log's capacity.
    Refuse,
    /// An operator has to make the next generation possible. The caller finds out why.
    Drop,
}

/// Only new jobs may have to wait. Everything else may free the log, and a settlement must not wait
/// until its lease has expired.
fn admission(shared: &LogShared, state: &mut LogState, command: &Command) -> Admission {
    if !command.adds_jobs() {
        return Admission::Send;
    }
    // The kept generations should not take more disk space.
    if state.blocks_growth() {
        return match &state.change_failure {
            Some(error) if is_lasting(error) => Admission::Drop,
            _ => Admission::Hold(Backlog::AwaitsGeneration),
        };
    }
    // Better not write payloads that the log would refuse. A replay does not know the present
    // state.
    if !shared.caught_up.load(Ordering::Relaxed) {
        return Admission::Send;
    }
    let jobs = command.new_jobs();
    if !state.replica.has_room(0, jobs.iter().copied()) {
        Admission::Refuse
    } else if !state.replica.has_room(state.sent_bytes as u64, jobs) {
        Admission::Hold(Backlog::AwaitsReply)
    } else {
        Admission::Send
    }
}
