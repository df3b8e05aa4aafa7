//! Reads payloads from the log.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use dq_core::{Error, ErrorKind, JobId, Result};
use futures_util::StreamExt;

use super::generation::Generation;
use super::generation::directory;
use super::shared::LogShared;
use super::state::stored::{LogPosition, PayloadRef};
use super::stream::{READ_OPERATION, consume_from, offset_of, read_error};
use super::wire::{self, Entry};
use crate::error::LostReply;
use crate::payloads::buffer::HORIZON;

/// Messages that the broker sends ahead. Few, because messages up to 256 KiB behind the last needed
/// one come in vain.
const PREFETCH: u16 = 8;
/// Skipping this many bytes is quicker than starting another consumer behind them.
const MAX_GAP_BYTES: u64 = 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadPurpose {
    /// The jobs are run. Other waiting jobs on the way go into the buffer for the next claims.
    Run,
    /// The jobs are shown, published or copied.
    View,
}

struct Pass<'a> {
    shared: &'a LogShared,
    purpose: ReadPurpose,
    missing: BTreeMap<u64, Vec<(JobId, PayloadRef)>>,
    found: HashMap<JobId, Bytes>,
}

/// Reads these payloads in one pass. Leaves out lost ones, and payloads that differ from the stored
/// ones.
pub(super) async fn read(
    shared: &LogShared,
    jobs: impl IntoIterator<Item = (JobId, PayloadRef)>,
    purpose: ReadPurpose,
) -> Result<HashMap<JobId, Bytes>> {
    let mut missing: BTreeMap<u64, Vec<_>> = BTreeMap::new();
    for (id, stored) in jobs {
        missing.entry(stored.position.offset).or_default().push((id, stored));
    }
    let mut pass = Pass { shared, purpose, missing, found: HashMap::new() };
    pass.read_cached()?;
    while let Some(first) = pass.missing.keys().next().copied() {
        pass.read_from(first).await?;
    }
    Ok(pass.found)
}

impl Pass<'_> {
    fn read_cached(&mut self) -> Result<()> {
        let cached: Vec<_> = {
            let cache = &self.shared.state().cache;
            let message = |offset: &u64| Some((*offset, cache.get(*offset)?.clone()));
            self.missing.keys().filter_map(message).collect()
        };
        cached.into_iter().try_for_each(|(offset, message)| self.visit(offset, &message))
    }

    /// Reads from this offset up to the first large gap between missing offsets.
    async fn read_from(&mut self, first: u64) -> Result<()> {
        let shared = self.shared;
        let failed = |error: lapin::Error| read_error(shared, &error);
        let generation = Generation::of(first);
        let Some((channel, mut messages)) = consume_from(shared, first, PREFETCH).await? else {
            let is_past = shared.generation().is_some_and(|current| current > generation);
            if !is_past || !directory::is_gone(shared, generation).await? {
                return Err(not_found());
            }
            // Its payloads are in a later generation. A caller that has not read that yet looks
            // again.
            self.missing.retain(|offset, _| Generation::of(*offset) != generation);
            return Ok(());
        };
        let mut unacknowledged = 0;
        let (mut messages_read, mut bytes_read) = (0, 0);
        while let Some(next) = self.missing.keys().next().copied()
            && Generation::of(next) == generation
        {
            let message = tokio::time::timeout(shared.response_timeout, messages.next());
            let Ok(Some(delivery)) = message.await else {
                return Err(shared.timeout_error(READ_OPERATION, LostReply::Unavailable));
            };
            let delivery = delivery.map_err(failed)?;
            let offset = generation.offset(offset_of(&delivery)?);
            messages_read += 1;
            bytes_read += delivery.data.len() as u64;
            // Messages that the broker skips are deleted.
            self.missing = self.missing.split_off(&offset);
            // Assumes that messages in the gap are as large as those read.
            let gap = next.saturating_sub(offset).saturating_mul(bytes_read / messages_read);
            if gap > MAX_GAP_BYTES {
                break;
            }
            self.visit(offset, &delivery.data)?;
            unacknowledged += 1;
            if unacknowledged == PREFETCH / 2 {
                unacknowledged = 0;
                channel.ack(delivery.delivery_tag, true).await.map_err(failed)?;
            }
        }
        channel.close().await;
        Ok(())
    }

    fn visit(&mut self, offset: u64, message: &[u8]) -> Result<()> {
        let needed = self.missing.remove(&offset).unwrap_or_default();
        if needed.is_empty() && self.purpose == ReadPurpose::View {
            return Ok(());
        }
        let entries = wire::decode(message)?.into_entries().unwrap_or_default();
        for (id, stored) in needed {
            let payload = payload_of(&entries, id, &stored).cloned();
            self.found.extend(payload.map(|payload| (id, payload)));
        }
        if self.purpose == ReadPurpose::Run {
            self.buffer_waiting(offset, &entries);
        }
        Ok(())
    }

    fn buffer_waiting(&self, offset: u64, entries: &[Entry]) {
        let soon = self.shared.clock.now() + HORIZON;
        let mut state = self.shared.state();
        let machine = state.replica.machine();
        for (entry, index) in entries.iter().zip(0..) {
            let payloads = (0..).map_while(|job| Some((job, entry.command.payload(job)?)));
            for (job, (id, payload)) in payloads {
                let at = LogPosition { offset, entry: index, job };
                if machine.stored(id).is_some_and(|stored| stored.payload.position == at)
                    && machine.is_waiting(id)
                    && let Some(job) = machine.peek(id)
                    && job.due <= soon
                {
                    self.shared.payloads.insert_from_log(job, payload);
                }
            }
        }
    }
}

/// Returns the job's payload in a message; `None` if another one is there.
fn payload_of<'a>(entries: &'a [Entry], id: JobId, stored: &PayloadRef) -> Option<&'a Bytes> {
    let entry = entries.get(stored.position.entry as usize)?;
    let (found, payload) = entry.command.payload(stored.position.job)?;
    (found == id && stored.is_of(payload)).then_some(payload)
}

fn not_found() -> Error {
    Error::new(ErrorKind::Unavailable, "the broker does not find a stream of the log")
        .remedy("none needed: it is tried again")
        .operation(READ_OPERATION)
}
