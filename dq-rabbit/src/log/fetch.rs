//! Fetches payloads from their positions in the log.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{Error, ErrorKind, Job, JobId, Result};
use futures_util::StreamExt;

use super::directory;
use super::position::{LogPosition, PayloadRef};
use super::shared::LogShared;
use super::stream::{READ_OPERATION, consume_from, offset_of, read_error};
use super::wire::{self, Checksum, EntryBatch};
use crate::error::LostReply;
use crate::generation::Generation;

/// Maximum number of unacknowledged messages that the broker delivers. Few, because those behind the
/// last message that is needed are delivered in vain: a message has up to 256 KiB.
const PREFETCH: u16 = 8;
/// Messages that are not needed are read and skipped up to about this many bytes, which is quicker
/// than to start another consumer behind them.
const MAX_GAP_BYTES: u64 = 1024 * 1024;

/// A pass that reads ahead forgets payloads of jobs that were due longer ago than this: most have been
/// claimed by another process, and would leave no room for others. Other passes leave them until there
/// is no room.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// Positions by the offset of their message.
type Positions = BTreeMap<u64, Vec<LogPosition>>;

/// What a pass does with each message that it reads: its offset, its bytes, and the positions in it
/// that are needed.
type Visit<'a> = dyn FnMut(u64, &[u8], &[LogPosition]) -> Result<()> + Send + 'a;

/// Fetched payloads.
#[derive(Debug, Default)]
pub(crate) struct Payloads(HashMap<LogPosition, (JobId, Bytes)>);

impl Payloads {
    /// The payload of a job of a replica. `None` if the log does not have it any more, or if what it
    /// has is not the payload of this job.
    pub(crate) fn of(&self, job: &Job) -> Option<Bytes> {
        self.get(job.id, &PayloadRef::of(job))
    }

    /// As [`of`](Self::of), for the job with this id and this reference to its payload.
    pub(crate) fn get(&self, id: JobId, stored: &PayloadRef) -> Option<Bytes> {
        let (found, payload) = self.0.get(&stored.position)?;
        (*found == id && Checksum::of(payload) == stored.checksum).then(|| payload.clone())
    }
}

/// Fetches the payloads at these positions. Those that the broker has deleted are left
/// out.
pub(super) async fn fetch(shared: &LogShared, positions: Vec<LogPosition>) -> Result<Payloads> {
    let mut payloads = Payloads::default();
    let mut missing = fetch_cached(shared, positions, &mut payloads)?;
    let mut visit = |_: u64, message: &[u8], positions: &[LogPosition]| {
        if !positions.is_empty() {
            extract(&decode(message)?, positions, &mut payloads);
        }
        Ok(())
    };
    pass(shared, &mut missing, &mut visit).await?;
    Ok(payloads)
}

/// As [`fetch`], for the jobs of a claim: takes the payloads that earlier passes have kept, and keeps
/// those of other waiting jobs that it reads on the way, since the next claims need those due first.
pub(super) async fn fetch_to_run(
    shared: &LogShared,
    jobs: &HashMap<JobId, PayloadRef>,
) -> Result<Payloads> {
    let mut payloads = Payloads::default();
    let jobs = jobs.iter().map(|(id, stored)| (*id, *stored));
    let positions = take_kept(shared, jobs, &mut payloads);
    let mut missing = fetch_cached(shared, positions, &mut payloads)?;
    let mut visit = |offset: u64, message: &[u8], positions: &[LogPosition]| {
        let batch = decode(message)?;
        extract(&batch, positions, &mut payloads);
        keep_others(shared, offset, &batch, positions);
        Ok(())
    };
    pass(shared, &mut missing, &mut visit).await?;
    Ok(payloads)
}

/// Reads the payloads of these jobs in one pass over the log, and reports each when it is found.
/// Payloads of other waiting jobs that it reads on the way are kept for later, those due first preferred.
pub(super) async fn read_ahead(
    shared: &LogShared,
    jobs: &[Job],
    mut found: impl FnMut(&Job, Bytes) + Send,
) -> Result<()> {
    let mut by_position: HashMap<LogPosition, &Job> =
        jobs.iter().map(|job| (LogPosition::of(job), job)).collect();
    let mut report = |payloads: &Payloads| {
        for position in payloads.0.keys() {
            let Some(job) = by_position.remove(position) else { continue };
            if let Some(payload) = payloads.of(job) {
                found(job, payload);
            }
        }
    };
    lock(&shared.kept).forget_before(shared.clock.now() - KEPT_FOR);
    let mut payloads = Payloads::default();
    let stored = jobs.iter().map(|job| (job.id, PayloadRef::of(job)));
    let positions = take_kept(shared, stored, &mut payloads);
    let mut missing = fetch_cached(shared, positions, &mut payloads)?;
    report(&payloads);
    let mut visit = |offset: u64, message: &[u8], positions: &[LogPosition]| {
        let (batch, mut payloads) = (decode(message)?, Payloads::default());
        extract(&batch, positions, &mut payloads);
        report(&payloads);
        keep_others(shared, offset, &batch, positions);
        Ok(())
    };
    pass(shared, &mut missing, &mut visit).await
}

/// Adds the payloads of these jobs that earlier passes have kept. Returns the positions of the
/// others.
fn take_kept(
    shared: &LogShared,
    jobs: impl Iterator<Item = (JobId, PayloadRef)>,
    payloads: &mut Payloads,
) -> Vec<LogPosition> {
    let mut missing = Vec::new();
    let mut kept = lock(&shared.kept);
    for (id, stored) in jobs {
        match kept.take(id, stored.checksum) {
            Some(payload) => drop(payloads.0.insert(stored.position, (id, payload))),
            None => missing.push(stored.position),
        }
    }
    missing
}

/// Adds the payloads in the cached messages. Returns the other positions.
fn fetch_cached(
    shared: &LogShared,
    positions: Vec<LogPosition>,
    payloads: &mut Payloads,
) -> Result<Positions> {
    let mut missing = Positions::new();
    for position in positions {
        missing.entry(position.offset).or_default().push(position);
    }
    let cached: Vec<_> = {
        let cache = &shared.state().cache;
        let message =
            |offset: &u64| Some((*offset, cache.get(*offset)?.clone(), cache.get_decoded(*offset)));
        missing.keys().filter_map(message).collect()
    };
    let mut new = Vec::new();
    for (offset, message, decoded) in cached {
        let batch = match decoded {
            Some(batch) => batch,
            None => {
                let batch = Arc::new(decode(&message)?);
                new.push((offset, message, Arc::clone(&batch)));
                batch
            }
        };
        extract(&batch, &missing.remove(&offset).unwrap_or_default(), payloads);
    }
    if !new.is_empty() {
        let cache = &mut shared.state().cache;
        for (offset, message, batch) in new {
            cache.keep_decoded(offset, &message, batch);
        }
    }
    Ok(missing)
}

/// Visits the messages with these positions, in order, and those between them that are read on the
/// way.
async fn pass(shared: &LogShared, missing: &mut Positions, visit: &mut Visit<'_>) -> Result<()> {
    while let Some(first) = missing.keys().next().copied() {
        pass_from(shared, first, missing, visit).await?;
    }
    Ok(())
}

/// Reads from this offset on, up to the first large gap between missing offsets.
async fn pass_from(
    shared: &LogShared,
    first: u64,
    missing: &mut Positions,
    visit: &mut Visit<'_>,
) -> Result<()> {
    let failed = |error: lapin::Error| read_error(shared, &error);
    let generation = Generation::of(first);
    let Some((channel, mut messages)) = consume_from(shared, first, PREFETCH).await? else {
        let is_past = shared.generation().is_some_and(|current| current > generation);
        if !is_past || !directory::is_gone(shared, generation).await? {
            return Err(not_found());
        }
        // It was deleted since what is needed of it is in a later generation; a caller whose replica
        // has not read that yet looks again.
        missing.retain(|offset, _| Generation::of(*offset) != generation);
        return Ok(());
    };
    let mut unacknowledged = 0;
    let (mut messages_read, mut bytes_read) = (0, 0);
    while let Some(next) = missing.keys().next().copied()
        && Generation::of(next) == generation
    {
        let message = tokio::time::timeout(shared.settings.response_timeout, messages.next());
        let Ok(Some(delivery)) = message.await else {
            return Err(shared.timeout_error(READ_OPERATION, LostReply::Unavailable));
        };
        let delivery = delivery.map_err(failed)?;
        let offset = generation.offset(offset_of(&delivery)?);
        messages_read += 1;
        bytes_read += delivery.data.len() as u64;
        // Messages that the broker skips have been deleted.
        while let Some(entry) = missing.first_entry().filter(|entry| *entry.key() < offset) {
            entry.remove();
        }
        let positions = missing.remove(&offset);
        // The messages in the gap are taken to be as large as those that were read.
        let gap = next.saturating_sub(offset).saturating_mul(bytes_read / messages_read);
        if positions.is_none() && gap > MAX_GAP_BYTES {
            break;
        }
        visit(offset, &delivery.data, &positions.unwrap_or_default())?;
        unacknowledged += 1;
        if unacknowledged == PREFETCH / 2 {
            unacknowledged = 0;
            channel.ack(delivery.delivery_tag, true).await.map_err(failed)?;
        }
    }
    channel.close().await;
    Ok(())
}

/// The error for a generation that was not deleted, when the broker does not find it.
fn not_found() -> Error {
    Error::new(ErrorKind::Unavailable, "the broker does not find a stream of the log")
        .remedy("none needed: it is tried again")
        .operation(READ_OPERATION)
}

/// Keeps the payloads of a message that other waiting jobs of the replica have.
fn keep_others(shared: &LogShared, offset: u64, batch: &EntryBatch, needed: &[LogPosition]) {
    let mut state = shared.state();
    let machine = state.replica.machine();
    let mut kept = lock(&shared.kept);
    for (entry, index) in batch.entries.iter().zip(0..) {
        for (job, (id, payload)) in (0..).map_while(|job| Some((job, entry.command.payload(job)?)))
        {
            let at = LogPosition { offset, entry: index, job };
            let current = machine.peek(id).filter(|job| LogPosition::of(job) == at);
            if let Some(job) = current
                && machine.is_waiting(id)
                && !needed.contains(&at)
            {
                kept.keep(job.due, id, payload);
            }
        }
    }
}

/// The entries of a message; none if it is skipped.
fn decode(message: &[u8]) -> Result<EntryBatch> {
    Ok(wire::decode(message)?.into_batch().unwrap_or_default())
}

/// Adds the payloads at these positions in a message.
fn extract(batch: &EntryBatch, positions: &[LogPosition], payloads: &mut Payloads) {
    for position in positions {
        let entry = batch.entries.get(position.entry as usize);
        let found = entry.and_then(|entry| entry.command.payload(position.job));
        if let Some((id, payload)) = found {
            payloads.0.insert(*position, (id, payload.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_at_the_position_of_a_job_may_be_another_one() {
        let position = LogPosition { offset: 7, entry: 0, job: 0 };
        let [own, other] = [1, 2].map(|byte| JobId::from_bytes([byte; 16]));
        let (payload, foreign) = (Bytes::from_static(b"own"), Bytes::from_static(b"foreign"));
        let stored = |payload: &Bytes| PayloadRef {
            position,
            length: payload.len() as u32,
            checksum: Checksum::of(payload),
        };
        let found = Payloads(HashMap::from([(position, (own, payload.clone()))]));
        assert_eq!(found.get(own, &stored(&payload)), Some(payload.clone()));
        assert_eq!(found.get(other, &stored(&payload)), None, "it is of another job");
        assert_eq!(found.get(own, &stored(&foreign)), None, "it is not the one that was stored");
    }
}
