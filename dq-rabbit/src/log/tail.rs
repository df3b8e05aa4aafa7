//! Reads the log as it grows, and applies it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{Error, ErrorKind, Result};
use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer};

use super::command::{Command, Entry, decode};
use super::replica::{Applied, Replica, Reply};
use super::room::Room;
use super::{At, Shared, State, append, compact};
use crate::error::{Effect, of_call};

/// Messages that the broker sends ahead.
const AHEAD: u16 = 256;
/// Messages that are applied and acknowledged at once.
const BATCH: usize = 64;
/// Between two attempts to read.
const PAUSE: Duration = Duration::from_millis(100);
/// The broker says with each message of a stream where it stands.
const OFFSET: &str = "x-stream-offset";

/// Reads until it is dropped, or until there is something that cannot be read.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut begun = false;
    loop {
        if std::mem::replace(&mut begun, true) {
            shared.clock.sleep(PAUSE).await;
            // Whoever deleted the log, or came back with an empty disk, may have left nothing.
            shared.topology.forget();
            if let Err(error) = shared.topology.prepare().await {
                tracing::debug!(%error, "the log cannot be declared now");
                continue;
            }
        }
        match read(&shared).await {
            Ok(()) => tracing::debug!("reading the log begins anew"),
            Err(error) if error.kind() == ErrorKind::Incompatible => {
                shared.break_off(error);
                return;
            }
            Err(error) => tracing::debug!(%error, "the log cannot be read now"),
        }
    }
}

/// Reads on one channel, for as long as it lasts.
async fn read(shared: &Arc<Shared>) -> Result<()> {
    let expected = shared.state().next_offset;
    let (channel, mut consumer) = attach(shared, expected, AHEAD).await?;
    let mut attached = expected;
    loop {
        let delivery = tokio::select! {
            delivery = consumer.next() => delivery,
            () = shared.stuck.notified() => None,
        };
        let Some(delivery) = delivery else { return Ok(()) };
        let mut batch = vec![delivery];
        while batch.len() < BATCH {
            match consumer.next().now_or_never() {
                Some(Some(delivery)) => batch.push(delivery),
                _ => break,
            }
        }
        let mut last = None;
        let mut messages = Vec::with_capacity(batch.len());
        for delivery in batch {
            let delivery = delivery.map_err(|error| {
                of_call("read the log", Effect::None, shared.consume.server(), &error)
            })?;
            last = Some(delivery.delivery_tag);
            messages.push((offset_of(&delivery)?, Bytes::from(delivery.data)));
        }
        if let (Some(expected), Some((first, _))) = (attached.take(), messages.first())
            && !follows(shared, expected, *first).await?
        {
            tracing::warn!(first, expected, "the log was cut or deleted; it is read anew");
            let mut state = shared.state();
            state.next_offset = None;
            state.replica = Replica::unfounded();
            return Ok(());
        }
        apply_all(shared, messages)?;
        if let Some(tag) = last {
            channel.basic_ack(tag, BasicAckOptions { multiple: true }).await.map_err(|error| {
                of_call("read the log", Effect::None, shared.consume.server(), &error)
            })?;
        }
    }
}

/// Whether nothing is missing between what was read before this consumer and its first message. Offsets
/// leave out some numbers: the broker writes notes of its own into a stream.
async fn follows(shared: &Shared, expected: u64, first: u64) -> Result<bool> {
    if first <= expected {
        return Ok(first == expected);
    }
    let (_channel, mut consumer) = attach(shared, None, 1).await?;
    match consumer.next().await {
        Some(Ok(oldest)) => Ok(offset_of(&oldest)? <= expected),
        Some(Err(error)) => {
            Err(of_call("read the log", Effect::None, shared.consume.server(), &error))
        }
        None => Ok(false),
    }
}

/// A consumer from this offset on, or from the oldest message that there is.
pub(super) async fn attach(
    shared: &Shared,
    from: Option<u64>,
    ahead: u16,
) -> Result<(Channel, Consumer)> {
    let failed = |error: lapin::Error| {
        of_call("read the log", Effect::None, shared.consume.server(), &error)
    };
    let channel = shared.consume.channel("read the log").await?;
    channel.basic_qos(ahead, BasicQosOptions::default()).await.map_err(failed)?;
    let from = match from {
        Some(offset) => AMQPValue::LongLongInt(i64::try_from(offset).unwrap_or(i64::MAX)),
        None => AMQPValue::LongString("first".into()),
    };
    let mut arguments = FieldTable::default();
    arguments.insert(OFFSET.into(), from);
    let consumer = channel
        .basic_consume(
            shared.topology.names().log(),
            "".into(),
            BasicConsumeOptions::default(),
            arguments,
        )
        .await
        .map_err(failed)?;
    Ok((channel, consumer))
}

pub(super) fn offset_of(delivery: &Delivery) -> Result<u64> {
    let headers = delivery.properties.headers().as_ref();
    match headers.and_then(|headers| headers.inner().get(OFFSET)) {
        Some(AMQPValue::LongLongInt(offset)) if *offset >= 0 => Ok(offset.unsigned_abs()),
        _ => Err(Error::new(ErrorKind::Incompatible, "the log is not a stream")
            .remedy("delete the queue of that name, or choose another `prefix`")
            .operation("read the log")),
    }
}

/// Applies messages in order.
fn apply_all(shared: &Arc<Shared>, messages: Vec<(u64, Bytes)>) -> Result<()> {
    let earlier = {
        let mut state = shared.state();
        for (offset, message) in messages {
            if state.next_offset.is_none() {
                state.replica = Replica::starting_at(offset);
                state.room = Room::new(shared.settings.size);
            }
            let entries = decode(&message)?;
            state.room.read(message.len() as u64);
            state.window.push(offset, message);
            state.next_offset = Some(offset + 1);
            for (index, entry) in entries.into_iter().enumerate() {
                state.room.note(offset, &entry.command, append::weight(&entry.command) as u64);
                apply(shared, &mut state, offset, index as u32, entry);
            }
            shared.read.fetch_add(1, Ordering::Relaxed);
        }
        if state.replica.is_founded() { state.replica.machine().take_earlier() } else { Vec::new() }
    };
    for (queue, due) in earlier {
        shared.listeners.wake(&queue, due);
    }
    Ok(())
}

fn apply(shared: &Arc<Shared>, state: &mut State, offset: u64, index: u32, entry: Entry) {
    let (number, now) = (entry.number, entry.at);
    let own = entry.origin == state.origin;
    let looks = matches!(entry.command, Command::Look);
    match state.replica.apply(offset, index, entry) {
        Applied::Reply(reply) => {
            if own {
                answer(state, number, Some(reply), At { offset, now });
                if state.room.wants_copy() {
                    compact::start(shared);
                }
            }
        }
        Applied::Again => {
            // It may have counted before the copy that the state was founded on. Then the answer is
            // lost, but for a mere look.
            if own {
                answer(state, number, looks.then_some(Reply::Seen), At { offset, now });
            }
        }
        Applied::Gap { forgotten } => {
            if own {
                state.forgotten |= forgotten;
                shared.again.notify_one();
            }
        }
        Applied::Later => {
            for (offset, index, entry) in state.replica.found() {
                apply(shared, state, offset, index, entry);
            }
        }
    }
}

/// Answers the call with this number, if it waits; without a reply, its waiter is dropped.
fn answer(state: &mut State, number: u64, reply: Option<Reply>, at: At) {
    if state.sent.front().is_none_or(|sent| sent.number != number) {
        return;
    }
    let sent = state.sent.pop_front();
    if let (Some(sent), Some(reply)) = (sent, reply) {
        sent.call.waiter.answer(&mut state.replica, reply, at);
    }
}
