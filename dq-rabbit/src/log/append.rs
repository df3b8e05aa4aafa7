//! Writes calls to the log: all that have come together while the message before was on its way, in
//! one message.
//!
//! The broker's confirmations tell only what has to be written again; a call has taken effect when it
//! is read back. What is written twice counts once, and what is missing holds up what follows it: see
//! [`Replica::apply`](super::replica::Replica::apply).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation};

use super::command::{Command, Entry, Piece, encode};
use super::{Sent, Shared, compact, draw};
use crate::error::{Effect, from_lapin, unconfirmed_reason};

/// Bytes of one message, roughly, at most; but one call at least.
const MESSAGE: usize = 256 * 1024;
/// Messages that may be on their way to the broker.
const PIPELINE: usize = 32;
/// When nothing of what was written has been read back for so long, it is written again.
const LOST: Duration = Duration::from_secs(3);
/// A node that does nothing for so many times that long is left for another: it may have been cut off from
/// the others, and not know it.
const LEFT_AFTER: usize = 4;
/// Between two attempts to write what the broker refused.
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes that a call takes in the log, roughly.
pub(super) fn weight(command: &Command) -> usize {
    let jobs = match command {
        Command::Schedule(jobs) => jobs.iter().map(super::Scheduling::weight).sum(),
        Command::Copy(Piece::Jobs(_, jobs)) => jobs.iter().map(|copied| copied.job.weight()).sum(),
        Command::Park(found) => found.iter().map(|(job, _)| job.weight()).sum(),
        Command::Claim(claiming) => 16 * claiming.at_hand.len(),
        Command::Settle(settlements) => 64 * settlements.len(),
        Command::Cancel(jobs) => 64 * jobs.len(),
        Command::Reschedule(moves) => 72 * moves.len(),
        Command::Renew(renewals) => 72 * renewals.len(),
        _ => 0,
    };
    64 + jobs
}

/// Writes until it is dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        let (channel, generation) = match open(&shared).await {
            Ok(opened) => opened,
            Err(error) => {
                tracing::debug!(%error, "the log cannot be written now");
                shared.clock.sleep(PAUSE).await;
                continue;
            }
        };
        match write(&shared, &channel, generation).await {
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(%error, "writing to the log begins anew");
                shared.clock.sleep(PAUSE).await;
                if shared.publish.failure().is_none() {
                    // Only the channel has ended: the exchange is gone, or we may not use it.
                    let error = from_lapin(
                        "write the log",
                        Effect::None,
                        shared.publish.broker_info(),
                        &error,
                    );
                    shared.note(error);
                    restore(&shared).await;
                }
            }
        }
    }
}

/// Looks for another node that does what it is asked.
pub(super) fn leave(shared: &Shared) {
    if shared.publish.skip_node() {
        tracing::warn!("the node does nothing; another is tried");
        shared.publish.reconnect();
        shared.consume.reconnect();
    }
}

/// Declares again what somebody may have deleted.
async fn restore(shared: &Shared) {
    if let Err(error) = shared.topology.redeclare().await {
        tracing::debug!(%error, "the log cannot be declared now");
        shared.note(error);
    }
}

async fn open(shared: &Shared) -> dq_core::Result<(Channel, u64)> {
    let (channel, generation) = shared.publish.open("write the log").await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(|error| {
        from_lapin("write the log", Effect::None, shared.publish.broker_info(), &error)
    })?;
    Ok((channel, generation))
}

/// Writes on one channel, for as long as all goes well: first again what was not read back.
async fn write(
    shared: &Arc<Shared>,
    channel: &Channel,
    generation: u64,
) -> Result<(), lapin::Error> {
    let mut confirms = FuturesUnordered::new();
    let mut messages = rewrite(shared);
    let mut held_up = false;
    // For the oldest call that was written and not read back.
    let (mut waiting_for, mut waited, mut lost) = (None, 0, shared.clock.sleep(LOST));
    let mut seen = 0;
    loop {
        for message in messages.drain(..) {
            confirms.push(publish(shared, channel, &message).await?);
        }
        // What is written now would only be kept by the client, and take effect when nobody expects it
        // any more.
        let blocked = shared.publish.blocked().is_some();
        let oldest = shared.state().sent.front().map(|sent| sent.number);
        if oldest != waiting_for || blocked {
            waiting_for = oldest;
            waited = 0;
            lost = shared.clock.sleep(LOST);
        }
        tokio::select! {
            // The next message takes all that has come together meanwhile.
            () = shared.waiting.notified(), if !blocked && confirms.len() < PIPELINE => {
                messages.extend(next_message(shared));
                held_up = false;
                // More may wait than fits into one.
                match hold_up(shared) {
                    None => {}
                    Some(Cause::Size) => shared.waiting.notify_one(),
                    Some(Cause::Scarcity) => {
                        if shared.state().wants_copy(shared.clock.now()) {
                            compact::start(shared);
                        }
                        held_up = true;
                    }
                }
            }
            Some(confirmed) = confirms.next() => match confirmed? {
                Confirmation::Ack(None) | Confirmation::NotRequested => {}
                refused => {
                    let why = unconfirmed_reason(&refused);
                    tracing::warn!(why, "the broker did not take a message for the log");
                    shared.clock.sleep(PAUSE).await;
                    restore(shared).await;
                    return Ok(());
                }
            },
            () = shared.publish.lost(generation) => return Ok(()),
            () = shared.again.notified() => messages = rewrite(shared),
            () = shared.clock.sleep(PAUSE), if held_up => {
                shared.waiting.notify_one();
            }
            () = &mut lost, if waiting_for.is_some() && !blocked => {
                lost = shared.clock.sleep(LOST);
                // A long log takes its time to read, and nothing is lost with that.
                let read = shared.read.load(Ordering::Relaxed);
                if std::mem::replace(&mut seen, read) != read
                    && !shared.caught_up.load(Ordering::Relaxed)
                {
                    continue;
                }
                waited += 1;
                if waited == LEFT_AFTER {
                    leave(shared);
                    return Ok(());
                }
                if confirms.is_empty() {
                    // It is there, so the reader must be waiting for something that was cut off.
                    shared.stuck.notify_one();
                }
                messages = rewrite(shared);
            }
            () = shared.clock.sleep(PAUSE), if blocked => {}
        }
    }
}

async fn publish(
    shared: &Arc<Shared>,
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

/// All that was written and not read back, again.
fn rewrite(shared: &Shared) -> Vec<Vec<u8>> {
    let state = &mut *shared.state();
    if std::mem::take(&mut state.forgotten) {
        // Nobody would take notice of numbers that begin in the middle.
        state.origin = draw(&shared.entropy);
        state.next_number = 1;
        for sent in &mut state.sent {
            sent.number = state.next_number;
            state.next_number += 1;
        }
    }
    let origin = state.origin;
    let since = state.room.since();
    let mut messages = Vec::new();
    let mut entries = Vec::new();
    let mut bytes = 0;
    for Sent { number, call } in &mut state.sent {
        // What nobody waits for any more had better not happen this late. If it did happen, this is the
        // second time that it is written, and does not count.
        if call.waiter.is_gone() && !matches!(call.command, Command::Copy(_)) {
            state.waiting_bytes -= call.weight;
            call.command = Command::Look;
            call.weight = weight(&call.command);
            state.waiting_bytes += call.weight;
        }
        bytes += call.weight;
        entries.push(Entry { origin, number: *number, at: call.at, command: call.command.clone() });
        if bytes >= MESSAGE {
            messages.push(encode(since, &entries));
            entries.clear();
            bytes = 0;
        }
    }
    if !entries.is_empty() {
        messages.push(encode(since, &entries));
    }
    messages
}

/// Why calls wait that were not written.
enum Cause {
    /// They did not fit into the last message.
    Size,
    /// The log has to be shortened first.
    Scarcity,
}

fn hold_up(shared: &Shared) -> Option<Cause> {
    let state = shared.state();
    let scarce = state.room.is_scarce();
    let waits = !state.unsent.is_empty();
    waits.then_some(if scarce { Cause::Scarcity } else { Cause::Size })
}

/// What waits, as one message; `None` if nothing does.
fn next_message(shared: &Shared) -> Option<Vec<u8>> {
    let state = &mut *shared.state();
    let mut entries = Vec::new();
    let mut bytes = 0;
    // While the end of the log comes near what lives, only what makes room is written.
    let scarce = state.room.is_scarce();
    let mut kept = VecDeque::new();
    while bytes < MESSAGE {
        let Some(call) = state.unsent.pop_front() else { break };
        // What nobody waits for any more and was never written need not be.
        if call.waiter.is_gone() {
            state.waiting_bytes -= call.weight;
            continue;
        }
        if scarce && !matches!(call.command, Command::Copy(_)) {
            kept.push_back(call);
            continue;
        }
        bytes += call.weight;
        let number = state.next_number;
        state.next_number += 1;
        let command = call.command.clone();
        call.written.store(true, Ordering::Relaxed);
        entries.push(Entry { origin: state.origin, number, at: call.at, command });
        state.sent.push_back(Sent { number, call });
    }
    kept.append(&mut state.unsent);
    state.unsent = kept;
    (!entries.is_empty()).then(|| encode(state.room.since(), &entries))
}
