//! Appends calls to the log. Calls that gather while earlier messages are sent become one message.
//!
//! A call takes effect when its entry is read back, not when the broker confirms the message. Until
//! then the entry may be sent any number of times:
//! [`Replica::apply`](crate::log::state::replica::Replica::apply) ignores duplicates, and
//! everything after a gap.
//!
//! A budget limits the bytes that were sent and not read back, so that many processes together
//! cannot fill the log before a snapshot. Rewriting them begins with one message, the *probe*; the
//! others follow when it is read back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use lapin::{BasicProperties, Confirmation};

use super::outgoing::{Backlog, OutgoingMessage, next_message, rewrite};
use super::shared::{LogShared, LogState};
use crate::connect::{AmqpChannel, Reply};
use crate::error::{Permission, Refusal, from_use, refusal, unconfirmed};

const MAX_UNCONFIRMED_MESSAGES: usize = 32;
/// All processes together may have this part of the log's size in flight. Each may always send one
/// message.
const IN_FLIGHT_PART: u64 = 32;
/// One process may have this many bytes in flight.
const MAX_IN_FLIGHT_BYTES: u64 = 4 * 1024 * 1024;
/// Calls are rewritten when none was read back for this long, twice as long each further time.
const REWRITE_AFTER: Duration = Duration::from_secs(2);
/// Instead of this rewrite, another node is tried: a partitioned node may not have noticed.
const REWRITES_PER_NODE: u32 = 3;
/// A process that may be behind postpones a rewrite this often while it reads, because it may be
/// reading other processes' new messages.
const MAX_POSTPONED: u32 = 60;
/// Between attempts, and between looks at a condition without a signal.
const PAUSE: Duration = Duration::from_millis(100);

const APPEND_OPERATION: &str = "write the log";

pub(super) async fn run(shared: Arc<LogShared>) {
    loop {
        let (channel, epoch) = match open(&shared).await {
            Ok(opened) => opened,
            Err(error) => {
                tracing::debug!(%error, "the log cannot be written now");
                shared.clock.sleep(PAUSE).await;
                continue;
            }
        };
        if let Err(error) = append(&shared, &channel, epoch).await {
            tracing::debug!(%error, "the channel that appends to the log failed; another is opened");
            shared.clock.sleep(PAUSE).await;
            if shared.publish.failure().is_none() {
                // The exchange is missing, or the permission to use it.
                shared.record_error(write_error(&shared, &error));
                if refusal(&error) == Refusal::NotFound {
                    restore(&shared).await;
                }
            }
        }
    }
}

async fn open(shared: &LogShared) -> dq_core::Result<(AmqpChannel, u64)> {
    let (channel, epoch) = shared.publish.open(APPEND_OPERATION).await?;
    channel.confirm_select().await.map_err(|error| write_error(shared, &error))?;
    Ok((channel, epoch))
}

/// Restores the log's exchange and binding. `tail` restores the stream.
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

/// Decides when calls that were not read back are written again.
struct RewriteTimer<'a> {
    shared: &'a LogShared,
    /// The oldest call that was not read back.
    oldest: Option<u64>,
    rewrites: u32,
    postponed: u32,
    /// `LogShared::messages_read` when the timer fired last.
    messages_read: u64,
    timer: BoxFuture<'static, ()>,
}

enum TimerAction {
    Postponed,
    Rewrite,
    /// The node makes no progress.
    SwitchNode,
}

impl<'a> RewriteTimer<'a> {
    fn new(shared: &'a LogShared) -> Self {
        let timer = shared.clock.sleep(REWRITE_AFTER);
        Self { shared, oldest: None, rewrites: 0, postponed: 0, messages_read: 0, timer }
    }

    /// Begins anew if the oldest call was read back, or if the broker accepts no messages.
    fn observe(&mut self, oldest: Option<u64>, is_blocked: bool) {
        if oldest != self.oldest || is_blocked {
            let messages_read = self.messages_read;
            *self = Self { oldest, messages_read, ..Self::new(self.shared) };
        }
    }

    fn fire(&mut self) -> TimerAction {
        if self.may_postpone() {
            self.postponed += 1;
            self.timer = self.shared.clock.sleep(REWRITE_AFTER);
            return TimerAction::Postponed;
        }
        self.rewrites += 1;
        if self.rewrites == REWRITES_PER_NODE {
            return TimerAction::SwitchNode;
        }
        self.timer = self.shared.clock.sleep(REWRITE_AFTER * 2_u32.pow(self.rewrites));
        TimerAction::Rewrite
    }

    fn may_postpone(&mut self) -> bool {
        let read = self.shared.messages_read.load(Ordering::Relaxed);
        let has_progress = std::mem::replace(&mut self.messages_read, read) != read;
        let is_replaying = !self.shared.caught_up.load(Ordering::Relaxed);
        has_progress
            && self.shared.is_catching_up()
            && (is_replaying || self.postponed < MAX_POSTPONED)
    }
}

/// Appends on one channel until it or its connection fails. First rewrites the calls that were not
/// read back.
async fn append(
    shared: &LogShared,
    channel: &AmqpChannel,
    connection_epoch: u64,
) -> Result<(), lapin::Error> {
    let mut confirms = FuturesUnordered::new();
    // Nothing else is sent before the probe is read back, because it would follow a gap.
    let (mut messages, mut probe) = rewrite(shared, 1);
    let mut awaits_generation = false;
    let mut rewrite_timer = RewriteTimer::new(shared);
    loop {
        for message in messages.drain(..) {
            let confirm = publish(shared, channel, &message).await?;
            let generation = message.generation;
            let confirmed = confirm.received_at_last();
            confirms.push(confirmed.map(move |confirmed| confirmed.map(|it| (generation, it))));
        }
        // The client library would send messages long after their callers have given up.
        let is_blocked = shared.publish.blocked().is_some();
        let (oldest, has_budget) = {
            let state = shared.state();
            (state.outbox.sent.front().map(|sent| sent.sequence), has_budget(shared, &state))
        };
        rewrite_timer.observe(oldest, is_blocked);
        if probe.is_some_and(|last| oldest.is_none_or(|oldest| oldest > last)) {
            // Everything sent before the probe has been read too, so the rest is missing.
            (messages, _) = rewrite(shared, usize::MAX);
            probe = None;
            let _ = shared.has_gap.notified().now_or_never();
            continue;
        }
        let may_send = !is_blocked
            && has_budget
            && probe.is_none()
            && confirms.len() < MAX_UNCONFIRMED_MESSAGES;
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
                // In a closed generation, the message had no effect and is sent again.
                (generation, _) if shared.generation() != Some(generation) => {}
                (_, confirmation) => {
                    let broker = shared.publish.broker_info();
                    let Some(error) = unconfirmed(APPEND_OPERATION, broker, &confirmation) else {
                        continue;
                    };
                    tracing::warn!(%error, "the broker refused a message for the log");
                    shared.clock.sleep(PAUSE).await;
                    if let Confirmation::Ack(_) = confirmation {
                        // It was returned, because the stream or its binding is missing.
                        restore(shared).await;
                    }
                    return Ok(());
                }
            },
            () = shared.publish.lost(connection_epoch) => return Ok(()),
            () = shared.moved.notified() => {
                // Nothing sent before has had an effect, unless it was read back.
                (messages, _) = rewrite(shared, usize::MAX);
                probe = None;
                shared.call_submitted.notify_one();
            }
            () = shared.has_gap.notified(), if probe.is_none() => {
                (messages, probe) = rewrite(shared, 1);
            }
            () = shared.clock.sleep(PAUSE), if awaits_generation => {
                shared.call_submitted.notify_one();
            }
            () = &mut rewrite_timer.timer, if oldest.is_some() && !is_blocked => {
                match rewrite_timer.fire() {
                    TimerAction::Postponed => {}
                    TimerAction::SwitchNode => {
                        shared.switch_node();
                        return Ok(());
                    }
                    TimerAction::Rewrite => {
                        if confirms.is_empty() {
                            // All is confirmed, so the reader is stuck. It may wait for an offset
                            // that was truncated.
                            shared.reader_stuck.notify_one();
                        }
                        (messages, probe) = rewrite(shared, 1);
                    }
                }
            }
            () = shared.clock.sleep(PAUSE), if is_blocked => {}
        }
    }
}

/// Whether this process may send another message before earlier ones are read back.
pub(super) fn has_budget(shared: &LogShared, state: &LogState) -> bool {
    if state.outbox.sent_bytes == 0 {
        return true;
    }
    let share = shared.log_size / IN_FLIGHT_PART / state.replica.producers().active().max(1);
    (state.outbox.sent_bytes as u64) < share.min(MAX_IN_FLIGHT_BYTES)
}

async fn publish(
    shared: &LogShared,
    channel: &AmqpChannel,
    message: &OutgoingMessage,
) -> lapin::Result<Reply<Confirmation>> {
    let properties = BasicProperties::default().with_delivery_mode(2);
    let names = shared.topology.names();
    let (exchange, key) = (names.generations(), names.generation_key(message.generation));
    channel.publish(exchange, key, true, &message.body, properties).await
}
