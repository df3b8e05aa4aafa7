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
use super::window::Window;
use super::{At, Shared, State, append, compact, start};
use crate::error::{Effect, from_lapin};

/// Messages that the broker sends before those before them are acknowledged.
const PREFETCH: u16 = 256;
/// Messages that are applied and acknowledged at once.
const BATCH: usize = 64;
/// What was read last is there again after this long, or the log is not the one that it was.
const ABSENT: Duration = Duration::from_secs(3);
/// A node on which so many attempts to read have failed is left for another: it may have no replica of the
/// log, or one that does not come up.
const LEFT_AFTER: usize = 20;
/// Between two attempts to read.
const PAUSE: Duration = Duration::from_millis(100);
/// The broker says with each message of a stream where it stands.
const OFFSET: &str = "x-stream-offset";

/// Reads until it is dropped, or until there is something that cannot be read.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut begun = false;
    let mut failed = 0;
    let mut trusting = true;
    loop {
        if std::mem::replace(&mut begun, true) {
            shared.clock.sleep(PAUSE).await;
            // Whoever deleted the log, or came back with an empty disk, may have left nothing.
            if let Err(error) = shared.topology.redeclare().await {
                tracing::debug!(%error, "the log cannot be declared now");
                shared.note(error);
                continue;
            }
        }
        match read(&shared, trusting).await {
            Ok(ended) => {
                tracing::debug!(?ended, "reading the log begins anew");
                failed = 0;
                trusting = ended != Ended::Misled;
            }
            Err(Failure::Contents(error)) => {
                shared.break_off(error);
                return;
            }
            Err(Failure::Broker(error)) => {
                tracing::debug!(%error, "the log cannot be read now");
                shared.note(error);
                failed = if shared.consume.failure().is_none() { failed + 1 } else { 0 };
                if failed == LEFT_AFTER {
                    failed = 0;
                    append::leave(&shared);
                }
            }
        }
    }
}

/// Why reading begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The channel did.
    Cut,
    /// The log is not the one that was read.
    Replaced,
    /// It was begun where no whole copy is.
    Misled,
}

/// Why reading failed.
enum Failure {
    /// The broker said so, or said nothing. Whatever it is, it may be over when it is asked again.
    Broker(Error),
    /// What is in the log.
    Contents(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Broker(error)
    }
}

/// Reads on one channel, for as long as it lasts. What others say of where to begin is heeded only if
/// `trusting`.
async fn read(shared: &Arc<Shared>, trusting: bool) -> Result<Ended, Failure> {
    let last = last(shared);
    let told = match &last {
        None if trusting => start::find(shared).await?,
        _ => None,
    };
    let from = match (&last, told) {
        (Some((offset, _)), _) => Start::Offset(*offset),
        (None, Some(told)) => Start::Offset(told.since),
        (None, None) => Start::Oldest,
    };
    let (channel, mut consumer) = attach(shared, from, PREFETCH).await?;
    let mut first = None;
    if let Some(last) = &last {
        first = same(shared, &channel, last, &mut consumer).await?;
        if first.is_none() {
            begin_anew(shared);
            return Ok(Ended::Replaced);
        }
    }
    loop {
        let delivery = match first.take() {
            Some(first) => Some(Ok(first)),
            None => tokio::select! {
                delivery = consumer.next() => delivery,
                () = shared.stuck.notified() => None,
            },
        };
        let Some(delivery) = delivery else { return Ok(Ended::Cut) };
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
                from_lapin("read the log", Effect::None, shared.consume.broker_info(), &error)
            })?;
            last = Some(delivery.delivery_tag);
            let offset = offset_of(&delivery).map_err(Failure::Contents)?;
            messages.push((offset, Bytes::from(delivery.data)));
        }
        if jumps(shared, &messages) && !reaches_back(shared).await? {
            tracing::warn!("the log was cut faster than it was read; it is read anew");
            begin_anew(shared);
            return Ok(Ended::Replaced);
        }
        apply_all(shared, messages).map_err(Failure::Contents)?;
        if told.is_some_and(|told| is_lost_after(shared, told.by)) {
            tracing::warn!("the newest copy in the log is not whole; all of the log is read");
            begin_anew(shared);
            return Ok(Ended::Misled);
        }
        if let Some(tag) = last {
            channel.basic_ack(tag, BasicAckOptions { multiple: true }).await.map_err(|error| {
                from_lapin("read the log", Effect::None, shared.consume.broker_info(), &error)
            })?;
        }
    }
}

/// Whether all up to this message was read, and still no state is known.
fn is_lost_after(shared: &Shared, offset: u64) -> bool {
    let state = shared.state();
    state.next_offset.is_some_and(|next| next > offset) && !state.replica.is_founded()
}

/// Whether offsets are left out between these messages and those before. The broker leaves some out for
/// notes of its own; but it also jumps over what it has cut off before a slow reader.
fn jumps(shared: &Shared, messages: &[(u64, Bytes)]) -> bool {
    let mut next = shared.state().next_offset;
    messages.iter().any(|(offset, _)| {
        let jumps = next.is_some_and(|next| *offset > next);
        next = Some(offset + 1);
        jumps
    })
}

/// Whether the log begins before what is to be read next.
async fn reaches_back(shared: &Shared) -> Result<bool> {
    let next = shared.state().next_offset;
    let (_channel, mut consumer) = attach(shared, Start::Oldest, 1).await?;
    match tokio::time::timeout(shared.settings.response_timeout, consumer.next()).await {
        Ok(Some(Ok(oldest))) => {
            let oldest = offset_of(&oldest)?;
            Ok(next.is_none_or(|next| oldest <= next))
        }
        Ok(Some(Err(error))) => {
            Err(from_lapin("read the log", Effect::None, shared.consume.broker_info(), &error))
        }
        Ok(None) | Err(_) => Err(shared.unanswered("read the log", Effect::None)),
    }
}

/// The message that was read last, and where.
fn last(shared: &Shared) -> Option<(u64, Bytes)> {
    let state = shared.state();
    state.next_offset?;
    state.window.last()
}

/// The message that was read last, if it comes first again, so that nothing is missing since. If the log
/// was cut or deleted meanwhile, or has lost its end with a disk, something else comes, or nothing at all:
/// the broker waits for what we asked for.
async fn same(
    shared: &Shared,
    channel: &Channel,
    (offset, message): &(u64, Bytes),
    consumer: &mut Consumer,
) -> Result<Option<Delivery>> {
    let failed = |error: lapin::Error| {
        from_lapin("read the log", Effect::None, shared.consume.broker_info(), &error)
    };
    let ended = || {
        Error::new(ErrorKind::Unavailable, "the log was taken from us").operation("read the log")
    };
    let Ok(delivery) = tokio::time::timeout(ABSENT, consumer.next()).await else {
        // A broker that answers nothing at all tells nothing of the log.
        let asked = channel.basic_qos(PREFETCH, BasicQosOptions::default());
        match tokio::time::timeout(ABSENT, asked).await {
            Ok(answer) => answer.map_err(failed)?,
            Err(_) => return Err(shared.unanswered("read the log", Effect::None)),
        }
        tracing::warn!(offset, "the log has lost what was read last; it is read anew");
        return Ok(None);
    };
    let delivery = delivery.ok_or_else(ended)?.map_err(failed)?;
    if (offset_of(&delivery)?, &delivery.data[..]) == (*offset, &message[..]) {
        return Ok(Some(delivery));
    }
    tracing::warn!(offset, "the log was cut or deleted; it is read anew");
    Ok(None)
}

/// Forgets all that was read. Whoever waits for jobs looks again once the new state is known.
fn begin_anew(shared: &Arc<Shared>) {
    {
        let mut state = shared.state();
        state.next_offset = None;
        state.replica = Replica::unfounded();
        state.window = Window::default();
        state.room = Room::unread(shared.settings.size);
    }
    shared.caught_up.store(false, Ordering::Relaxed);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let known = async {
            let look = || shared.call("read the log", Effect::None, Command::Look, |_, _, _| ());
            while look().await.is_err() {
                shared.clock.sleep(PAUSE).await;
            }
        };
        if shared.stop.run_until_cancelled(known).await.is_some() {
            shared.listeners.wake_all(shared.clock.now());
        }
    });
}

/// Where to begin to read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start {
    Offset(u64),
    /// The oldest message that there is.
    Oldest,
    /// The newest message, or one not long before it.
    Newest,
}

/// A consumer from there on.
pub(super) async fn attach(
    shared: &Shared,
    from: Start,
    prefetch: u16,
) -> Result<(Channel, Consumer)> {
    let failed = |error: lapin::Error| {
        from_lapin("read the log", Effect::None, shared.consume.broker_info(), &error)
    };
    let channel = shared.consume.channel("read the log").await?;
    channel.basic_qos(prefetch, BasicQosOptions::default()).await.map_err(failed)?;
    let from = match from {
        Start::Offset(offset) => AMQPValue::LongLongInt(i64::try_from(offset).unwrap_or(i64::MAX)),
        Start::Oldest => AMQPValue::LongString("first".into()),
        Start::Newest => AMQPValue::LongString("last".into()),
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
            if state.next_offset.is_some_and(|next| offset < next) {
                // What was read last comes once more when reading begins again.
                continue;
            }
            if state.next_offset.is_none() {
                state.replica = Replica::starting_at(offset);
                state.room = Room::new(shared.settings.size, offset);
            }
            let entries = decode(&message)?.entries;
            state.room.read(message.len() as u64);
            state.window.push(offset, message);
            state.next_offset = Some(offset + 1);
            for (index, entry) in entries.into_iter().enumerate() {
                let weight = append::weight(&entry.command) as u64;
                state.room.note(offset, &entry.command, weight, shared.clock.now());
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
                let begins = state.room.is_begun(offset);
                answer(shared, state, number, Some(reply), At { offset, now, begins });
                if state.wants_copy(shared.clock.now()) {
                    compact::start(shared);
                }
            }
        }
        Applied::Again => {
            // It may have counted before the copy that the state was founded on. Then the answer is
            // lost, but for a mere look.
            if own {
                let at = At { offset, now, begins: false };
                answer(shared, state, number, looks.then_some(Reply::Seen), at);
            }
        }
        Applied::Gap { last } => {
            if own {
                // What is missing is not among what can be written again: the log has lost its end.
                let first = state.sent.front().map_or(number, |sent| sent.number);
                state.forgotten |= first > last + 1;
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
fn answer(shared: &Shared, state: &mut State, number: u64, reply: Option<Reply>, at: At) {
    if state.sent.front().is_none_or(|sent| sent.number != number) {
        return;
    }
    let sent = state.sent.pop_front();
    state.waiting_bytes -= sent.as_ref().map_or(0, |sent| sent.call.weight);
    if reply.is_some() {
        shared.caught_up.store(true, Ordering::Relaxed);
        shared.troubles().take();
    }
    if let (Some(sent), Some(reply)) = (sent, reply) {
        sent.call.waiter.answer(&mut state.replica, reply, at);
    }
}
