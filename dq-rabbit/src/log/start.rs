//! Finds the offset at which to start reading: the newest complete snapshot.
//!
//! Each message carries the offset from which its writer would replay the log, so the newest
//! message is usually enough. If its writer has only just started, some messages before it are
//! read.

use std::sync::atomic::Ordering;

use dq_core::Result;
use futures_util::StreamExt;
use lapin::message::Delivery;

use super::shared::LogShared;
use super::stream::{StreamStart, consume, offset_of, read_error};
use super::wire::{self, Command, Entry, SnapshotPart};

/// Number of messages before the newest one that are searched for a hint.
const LOOKBACK: u64 = 200;

/// Offset of a snapshot, as a message names it. It may be wrong.
#[derive(Debug, Clone, Copy)]
pub(super) struct SnapshotHint {
    /// Beginning of the snapshot.
    pub(super) begin: u64,
    /// Offset of the message. Its writer had read the end of the snapshot, so the hint was wrong if
    /// the state is still unknown after this message.
    pub(super) announced_at: u64,
}

/// The newest complete snapshot, if the newest messages name one.
pub(super) async fn find_snapshot(shared: &LogShared) -> Result<Option<SnapshotHint>> {
    match find_hint(shared).await? {
        Some(hint) if hint.begin > 0 && begins_snapshot(shared, hint.begin).await? => {
            Ok(Some(hint))
        }
        _ => Ok(None),
    }
}

/// The newest hint in the newest messages.
async fn find_hint(shared: &LogShared) -> Result<Option<SnapshotHint>> {
    let (_channel, mut messages) = consume(shared, StreamStart::Last, 1).await?;
    // Even a new log gets a message soon: the barrier that opening it appends.
    let Some(newest) = next(shared, &mut messages).await? else { return Ok(None) };
    let end = offset_of(&newest)?;
    if let Some(hint) = hint(&newest)? {
        return Ok(Some(hint));
    }
    let first = StreamStart::Offset(end.saturating_sub(LOOKBACK));
    let (_channel, mut messages) = consume(shared, first, 2 * LOOKBACK as u16).await?;
    let mut newest = None;
    while let Some(message) = next(shared, &mut messages).await? {
        newest = hint(&message)?.or(newest);
        if offset_of(&message)? >= end {
            break;
        }
    }
    Ok(newest)
}

/// The hint in a message, if it has one. A message that cannot be decoded counts as one without:
/// the error is reported when the message is read to be applied.
fn hint(message: &Delivery) -> Result<Option<SnapshotHint>> {
    let announced_at = offset_of(message)?;
    let begin = wire::decode(&message.data).ok().and_then(|batch| batch.replay_from);
    let begin = begin.filter(|begin| *begin < announced_at);
    Ok(begin.map(|begin| SnapshotHint { begin, announced_at }))
}

/// Whether a snapshot begins at this offset. The broker may have deleted it, or the hint's writer
/// may not have noticed yet that the log was replaced.
async fn begins_snapshot(shared: &LogShared, offset: u64) -> Result<bool> {
    let (_channel, mut messages) = consume(shared, StreamStart::Offset(offset), 1).await?;
    let Some(first) = next(shared, &mut messages).await? else { return Ok(false) };
    let begins = |entry: &Entry| matches!(entry.command, Command::Snapshot(SnapshotPart::Begin));
    let batch = wire::decode(&first.data);
    Ok(offset_of(&first)? == offset && batch.is_ok_and(|batch| batch.entries.iter().any(begins)))
}

/// The next message; `None` if there is none within the response timeout.
async fn next(shared: &LogShared, messages: &mut lapin::Consumer) -> Result<Option<Delivery>> {
    match tokio::time::timeout(shared.settings.response_timeout, messages.next()).await {
        Ok(Some(message)) => {
            // Progress, for calls that wait until the log has been replayed.
            shared.messages_read.fetch_add(1, Ordering::Relaxed);
            message.map(Some).map_err(|error| read_error(shared, &error))
        }
        Ok(None) | Err(_) => Ok(None),
    }
}
