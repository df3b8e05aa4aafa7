//! Reads the log from one generation to the next. [`apply`](super::apply) applies what was read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{Error, ErrorKind, Result};
use futures_util::{FutureExt, StreamExt};
use lapin::Consumer;
use lapin::message::Delivery;

use super::apply::{Progress, apply_all};
use super::cache::MessageCache;
use super::generation::Generation;
use super::generation::directory;
use super::history::sync_limits;
use super::loss;
use super::shared::LogShared;
use super::skipped::{SkippedMessages, SuspectMessages};
use super::stream::{READ_OPERATION, consume_from, cut_off, offset_of, read_error};
use crate::connect::AmqpChannel;
use crate::error::LostReply;

const PREFETCH: u16 = 256;
const BATCH: usize = 64;
/// How long to wait for the message at an offset, then for any reply, which shows whether the
/// broker responds at all.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// Another node is tried after this many failures: this one may have no replica of the stream.
const ATTEMPTS_PER_NODE: usize = 20;
const PAUSE: Duration = Duration::from_millis(100);
/// The pause after an error that a retry does not mend, because attempts append to the directory.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

pub(super) async fn run(shared: Arc<LogShared>) {
    let mut pause = Duration::ZERO;
    let mut failures = 0;
    loop {
        shared.clock.sleep(pause).await;
        match read(&shared).await {
            Ok(end) => {
                tracing::debug!(?end, "reading the log starts again");
                if end == ReadEnd::Replay {
                    reset(&shared);
                }
                failures = 0;
                pause = if end == ReadEnd::Closed { Duration::ZERO } else { PAUSE };
            }
            Err(ReadFailure::Contents(error)) => {
                shared.fail(error);
                return;
            }
            Err(ReadFailure::Broker(error)) => {
                tracing::debug!(%error, "the log cannot be read now");
                pause = if error.is_retryable() { PAUSE } else { REFUSED_PAUSE };
                shared.record_error(error);
                // A lost connection tries all nodes by itself.
                failures = if shared.consume.failure().is_none() { failures + 1 } else { 0 };
                if failures == ATTEMPTS_PER_NODE {
                    failures = 0;
                    shared.switch_node();
                }
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ReadEnd {
    Closed,
    /// Reading starts again at the message read last.
    StartAgain,
    /// The log is not the one that was read before, or has lost a part of it.
    Replay,
}

enum ReadFailure {
    /// The broker has failed. Reading is retried, even if the error is not retryable.
    Broker(Error),
    /// An entry cannot be decoded, and reading ends.
    Contents(Error),
}

impl From<Error> for ReadFailure {
    fn from(error: Error) -> Self {
        Self::Broker(error)
    }
}

/// Reads on one channel, starting at the message read last.
async fn read(shared: &LogShared) -> Result<ReadEnd, ReadFailure> {
    let generation = match shared.generation() {
        Some(generation) => generation,
        None => locate(shared).await?,
    };
    let last = last_read(shared).filter(|(offset, _)| Generation::of(*offset) == generation);
    let start = last.as_ref().map_or(generation.offset(0), |(offset, _)| *offset);
    let Some((channel, mut consumer)) = consume_from(shared, start, PREFETCH).await? else {
        // A generation that was read before is looked up in the directory.
        if last.is_none() {
            let follows_close = shared.state().next_offset.is_some();
            if directory::restore(shared, generation, follows_close).await? {
                return Ok(ReadEnd::StartAgain);
            }
        }
        let generation = generation.number();
        tracing::warn!(generation, "the broker has no such generation of the log");
        return Ok(ReadEnd::Replay);
    };
    #[cfg(test)]
    drop(shared.may_begin_to_read.lock().await);
    // After the consumer was accepted, because its stream may have been created again.
    if directory::may_be_deleted(shared, generation).await? {
        let generation = generation.number();
        tracing::info!(generation, "this generation of the log may have been deleted");
        return Ok(ReadEnd::Replay);
    }
    let mut last_again = None;
    if let Some(last) = &last {
        last_again = read_again(shared, &channel, last, &mut consumer).await?;
        if last_again.is_none() {
            return Ok(ReadEnd::Replay);
        }
    }
    while let Some(batch) = next_batch(shared, &mut consumer, last_again.take()).await {
        let mut last_tag = None;
        let mut messages = Vec::with_capacity(batch.len());
        for delivery in batch {
            let delivery = delivery.map_err(|error| read_error(shared, &error))?;
            last_tag = Some(delivery.delivery_tag);
            let offset = offset_of(&delivery).map_err(ReadFailure::Contents)?;
            messages.push((generation.offset(offset), Bytes::from(delivery.data)));
        }
        if let Some(end) = apply_batch(shared, generation, messages).await? {
            return Ok(end);
        }
        if let Some(tag) = last_tag {
            let acked = channel.ack(tag, true).await;
            acked.map_err(|error| read_error(shared, &error))?;
        }
    }
    Ok(ReadEnd::StartAgain)
}

/// Waits for a delivery, and takes further ones that have arrived. `None` if the consumer has
/// ended, or if `append` reports that confirmed entries are not read back.
async fn next_batch(
    shared: &LogShared,
    consumer: &mut Consumer,
    first: Option<Delivery>,
) -> Option<Vec<lapin::Result<Delivery>>> {
    let first = match first {
        Some(delivery) => Ok(delivery),
        None => tokio::select! {
            delivery = consumer.next() => delivery?,
            () = shared.reader_stuck.notified() => return None,
        },
    };
    let mut batch = vec![first];
    while batch.len() < BATCH
        && let Some(Some(delivery)) = consumer.next().now_or_never()
    {
        batch.push(delivery);
    }
    Some(batch)
}

/// Applies messages. Returns why reading ends, unless it goes on in this generation.
async fn apply_batch(
    shared: &LogShared,
    generation: Generation,
    messages: Vec<(u64, Bytes)>,
) -> Result<Option<ReadEnd>, ReadFailure> {
    if has_gap(shared, &messages) && !next_is_retained(shared).await? {
        tracing::warn!("the broker deleted messages before they were read; the log is replayed");
        return Ok(Some(ReadEnd::Replay));
    }
    if apply_all(shared, messages).map_err(ReadFailure::Contents)? == Progress::Suspect {
        return Ok(Some(ReadEnd::StartAgain));
    }
    let lacks_snapshot = std::mem::take(&mut shared.state().lacks_snapshot);
    if lacks_snapshot {
        if directory::fall_back(shared, generation).await? {
            return Ok(Some(ReadEnd::Replay));
        }
        shared.record_error(cut_off());
    }
    let is_closed = shared.generation() != Some(generation);
    Ok(is_closed.then_some(ReadEnd::Closed))
}

async fn locate(shared: &LogShared) -> Result<Generation> {
    let generation = directory::locate(shared).await?;
    shared.messages_read.fetch_add(1, Ordering::Relaxed);
    let mut state = shared.state();
    state.announced = Some(generation);
    state.begin_generation(generation, shared.log_size, shared.clock.elapsed());
    drop(state);
    shared.moved.notify_one();
    Ok(generation)
}

/// Whether offsets are missing. That proves no loss, because the broker uses offsets for its own
/// records.
fn has_gap(shared: &LogShared, messages: &[(u64, Bytes)]) -> bool {
    let mut next = shared.state().next_offset;
    messages.iter().any(|(offset, _)| {
        let is_gap = next.is_some_and(|next| *offset > next);
        next = Some(offset + 1);
        is_gap
    })
}

/// Whether the broker still has the message that is read next.
async fn next_is_retained(shared: &LogShared) -> Result<bool> {
    let Some(next) = shared.state().next_offset else { return Ok(true) };
    let generation = Generation::of(next);
    let Some((_channel, mut consumer)) = consume_from(shared, generation.offset(0), 1).await?
    else {
        return Ok(false);
    };
    match tokio::time::timeout(shared.response_timeout, consumer.next()).await {
        Ok(Some(Ok(oldest))) => Ok(generation.offset(offset_of(&oldest)?) <= next),
        Ok(Some(Err(error))) => Err(read_error(shared, &error)),
        Ok(None) | Err(_) => Err(shared.timeout_error(READ_OPERATION, LostReply::Unavailable)),
    }
}

fn last_read(shared: &LogShared) -> Option<(u64, Bytes)> {
    let state = shared.state();
    state.next_offset?;
    state.cache.last()
}

/// Reads the last message again to verify that this is the same log. `None` if it has another one
/// there, or has lost its end: then the broker delivers nothing.
async fn read_again(
    shared: &LogShared,
    channel: &AmqpChannel,
    (offset, message): &(u64, Bytes),
    consumer: &mut Consumer,
) -> Result<Option<Delivery>> {
    let failed = |error: lapin::Error| read_error(shared, &error);
    let cancelled = || {
        Error::new(ErrorKind::Unavailable, "the broker cancelled the consumer of the log")
            .operation(READ_OPERATION)
    };
    let Ok(delivery) = tokio::time::timeout(PROBE_TIMEOUT, consumer.next()).await else {
        // It is missing only if the broker replies to another request.
        channel.qos(PREFETCH).await.map_err(failed)?;
        tracing::warn!(offset, "the log has lost the message that was read last; it is replayed");
        return Ok(None);
    };
    let delivery = delivery.ok_or_else(cancelled)?.map_err(failed)?;
    let again = Generation::of(*offset).offset(offset_of(&delivery)?);
    if (again, &delivery.data[..]) == (*offset, &message[..]) {
        return Ok(Some(delivery));
    }
    tracing::warn!(offset, "the log was truncated or deleted; it is replayed");
    Ok(None)
}

/// Forgets everything, so that the log is replayed. Wakes all listeners afterwards, because hints
/// may be lost.
pub(super) fn reset(shared: &Arc<LogShared>) {
    {
        let mut state = shared.state();
        let generation = state.generation.take();
        state.next_offset = None;
        let replica = std::mem::take(&mut state.replica);
        state.read_before.begin_replay(replica.into_producers(), generation);
        state.cache = MessageCache::default();
        state.skipped = SkippedMessages::default();
        state.suspects = SuspectMessages::default();
        state.outbox.begin_replay(shared.clock.now(), shared.clock.elapsed());
    }
    shared.caught_up.store(false, Ordering::Relaxed);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let caught_up = async {
            while sync_limits(&shared, READ_OPERATION).await.is_err()
                && shared.failure(READ_OPERATION).is_none()
            {
                shared.clock.sleep(PAUSE).await;
            }
        };
        let report = async {
            caught_up.await;
            shared.listeners.wake_all(shared.clock.now());
            loss::report(&shared).await;
        };
        shared.stop.run_until_cancelled(report).await;
    });
}
