//! Fetches payloads from their positions in the log.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use dq_core::{Headers, Result};
use futures_util::StreamExt;
use lapin::options::BasicAckOptions;

use super::position::LogPosition;
use super::shared::LogShared;
use super::stream::{READ_OPERATION, StreamStart, consume, offset_of, read_error};
use super::wire;
use crate::error::LostReply;

/// Maximum number of unacknowledged messages that the broker delivers.
const PREFETCH: u16 = 64;
/// Messages that are not needed are read and skipped up to this number, which is quicker than to
/// start another consumer behind them.
const MAX_GAP: u64 = 2_000;

/// Payloads and headers by position.
pub(crate) type Payloads = HashMap<LogPosition, (Bytes, Headers)>;

/// Fetches the payloads and headers at these positions. Those that the broker has deleted are left
/// out.
pub(super) async fn fetch(shared: &LogShared, positions: Vec<LogPosition>) -> Result<Payloads> {
    let mut payloads = Payloads::with_capacity(positions.len());
    let mut missing: BTreeMap<u64, Vec<LogPosition>> = BTreeMap::new();
    for position in positions {
        missing.entry(position.offset).or_default().push(position);
    }
    let cached = {
        let state = shared.state();
        let messages =
            missing.keys().filter_map(|offset| Some((*offset, state.cache.get(*offset)?.clone())));
        messages.collect::<Vec<_>>()
    };
    for (offset, message) in cached {
        extract(&message, &missing.remove(&offset).unwrap_or_default(), &mut payloads)?;
    }
    while let Some(first) = missing.keys().next().copied() {
        fetch_from(shared, first, &mut missing, &mut payloads).await?;
    }
    Ok(payloads)
}

/// Reads from this offset on, up to the first large gap between missing offsets.
async fn fetch_from(
    shared: &LogShared,
    first: u64,
    missing: &mut BTreeMap<u64, Vec<LogPosition>>,
    payloads: &mut Payloads,
) -> Result<()> {
    let failed = |error| read_error(shared, &error);
    let (channel, mut messages) = consume(shared, StreamStart::Offset(first), PREFETCH).await?;
    let mut unacknowledged = 0;
    while let Some(next) = missing.keys().next().copied() {
        let message = tokio::time::timeout(shared.settings.response_timeout, messages.next());
        let Ok(Some(delivery)) = message.await else {
            return Err(shared.timeout_error(READ_OPERATION, LostReply::Unavailable));
        };
        let delivery = delivery.map_err(failed)?;
        let offset = offset_of(&delivery)?;
        shared.messages_read.fetch_add(1, Ordering::Relaxed);
        // Messages that the broker skips have been deleted.
        while let Some(entry) = missing.first_entry().filter(|entry| *entry.key() < offset) {
            entry.remove();
        }
        if let Some(positions) = missing.remove(&offset) {
            extract(&delivery.data, &positions, payloads)?;
        } else if next > offset + MAX_GAP {
            break;
        }
        unacknowledged += 1;
        if unacknowledged == PREFETCH / 2 {
            unacknowledged = 0;
            let all = BasicAckOptions { multiple: true };
            channel.basic_ack(delivery.delivery_tag, all).await.map_err(failed)?;
        }
    }
    // An error of closing does not matter: all payloads have been fetched.
    let _ = channel.close(200, "read".into()).await;
    Ok(())
}

/// Adds the payloads at these positions in a message.
fn extract(message: &[u8], positions: &[LogPosition], payloads: &mut Payloads) -> Result<()> {
    let entries = wire::decode(message)?.entries;
    for position in positions {
        let entry = entries.get(position.entry as usize);
        if let Some(job) = entry.and_then(|entry| entry.command.job(position.job)) {
            payloads.insert(*position, (job.payload.clone(), job.headers.clone()));
        }
    }
    Ok(())
}
