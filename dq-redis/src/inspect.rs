//! Stats, browse and get: reading without changing jobs.

use std::sync::Arc;

use bytes::Bytes;
use dq_core::{
    BrowseParams, Cursor, JobRef, JobState, JobView, Page, QueueName, QueueStats, Result, Timestamp,
};
use redis::Value;

use crate::args::target_arg;
use crate::batch::Chunk;
use crate::error::unexpected;
use crate::keys::Partition;
use crate::record::{self, StoredState};
use crate::reply::{Refusal, Reply};
use crate::resize::ReshardRetries;
use crate::shards::partitions::QueuePartitions;
use crate::store::Store;

const STATS: &str = "stats";
const BROWSE: &str = "browse";
const GET: &str = "get";

/// Maximum number of partitions of one stats call.
const MAX_PARTITIONS: usize = 100;

/// Maximum bytes of records that are read at a time, divided among the partitions. Each call
/// returns at least one record.
const PAGE_BYTES: usize = 1024 * 1024;

/// Maximum number of jobs of one browse call; a page may take several calls.
const PAGE_JOBS: usize = 250;

/// Consecutive entries of a listing.
struct Entries {
    /// The cursor of each, and the job. `None` for an entry that is no job.
    entries: Vec<(Cursor, Option<JobView>)>,
    /// Whether there are more after these.
    more: bool,
}

/// A stored job, as scripts return it.
struct StoredJob {
    handle: Bytes,
    /// The due time, the end of the lease or the time of death.
    at: i64,
    record: Bytes,
    state: Bytes,
    reason: Bytes,
}

impl Store {
    /// Counts of these queues, in this order; of all queues if `queues` is empty.
    pub(crate) async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let all_queues;
        let queues = if queues.is_empty() {
            all_queues = self.queues(STATS).await?;
            &all_queues[..]
        } else {
            queues
        };
        let mut all: Vec<QueueStats> =
            queues.iter().map(|queue| QueueStats::empty(queue.clone())).collect();
        // The indices of queues that are still to be counted.
        let mut uncounted: Vec<usize> = (0..queues.len()).collect();
        let mut retries = ReshardRetries::default();
        while !uncounted.is_empty() {
            retries.next(STATS)?;
            let mut partitions = Vec::with_capacity(uncounted.len());
            for &index in &uncounted {
                all[index] = QueueStats::empty(queues[index].clone());
                let queue_partitions = self.partitions_of(STATS, &queues[index]).await?;
                partitions.extend(queue_partitions.all.iter().map(|one| (index, Arc::clone(one))));
            }
            let per_call = if self.link.server().is_cluster() { 1 } else { MAX_PARTITIONS };
            let mut closed = Vec::new();
            for chunk in partitions.chunks(per_call) {
                closed.extend(self.add_stats(chunk, &mut all).await?);
            }
            closed.dedup_by_key(|(index, _)| *index);
            for (_, partition) in &closed {
                self.reload(STATS, partition).await?;
            }
            // A queue with a closed partition is counted again from zero.
            uncounted = closed.into_iter().map(|(index, _)| index).collect();
        }
        Ok(all)
    }

    /// Adds the counts of partitions to those of their queues. Returns the closed partitions. Each
    /// partition comes with the index of its queue in `all`.
    async fn add_stats(
        &self,
        partitions: &[(usize, Arc<Partition>)],
        all: &mut [QueueStats],
    ) -> Result<Vec<(usize, Arc<Partition>)>> {
        let call = self.scripts.stats.on(partitions.iter().map(|(_, partition)| &**partition));
        let answer = call.run(&self.link, STATS).await?;
        let mut closed = Vec::new();
        let mut read = |answer| {
            let mut reply = Reply::new(answer)?;
            for (index, partition) in partitions {
                match reply.list_or_refusal()? {
                    Ok(counts) => add_counts(&mut all[*index], counts)?,
                    Err(Refusal::Closed) => closed.push((*index, Arc::clone(partition))),
                    Err(_) => return None,
                }
            }
            Some(())
        };
        match read(answer) {
            Some(()) => Ok(closed),
            None => unexpected(STATS),
        }
    }

    /// One page of a listing.
    pub(crate) async fn browse(&self, params: &BrowseParams<'_>) -> Result<Page> {
        let mut page = Page { jobs: Vec::new(), next: params.after };
        let mut retries = ReshardRetries::default();
        loop {
            let limit = params.limit - page.jobs.len();
            let partitions = self.partitions_of(BROWSE, params.queue).await?;
            let entries =
                self.browse_all(&partitions, params, limit.min(PAGE_JOBS), page.next).await?;
            let Some(Entries { entries, more }) = entries else {
                retries.next(BROWSE)?;
                continue;
            };
            let mut entries = entries.into_iter();
            for (cursor, view) in entries.by_ref() {
                page.next = Some(cursor);
                page.jobs.extend(view);
                if page.jobs.len() >= params.limit {
                    break;
                }
            }
            if !more && entries.len() == 0 {
                page.next = None;
                return Ok(page);
            }
            if page.jobs.len() >= params.limit {
                return Ok(page);
            }
        }
    }

    /// Reads the next entries of all partitions after a cursor, and merges them in order. If a
    /// partition has more entries than were read, the result ends at the last one read of it, since
    /// the next may belong there. `None` if a partition is closed.
    async fn browse_all(
        &self,
        partitions: &QueuePartitions,
        params: &BrowseParams<'_>,
        limit: usize,
        after: Option<Cursor>,
    ) -> Result<Option<Entries>> {
        let mut all = Entries { entries: Vec::new(), more: false };
        // All entries up to this cursor were read.
        let mut complete_to: Option<Cursor> = None;
        for partition in &partitions.all {
            let bytes = PAGE_BYTES / partitions.all.len();
            let read = self.browse_partition(partition, params, limit, bytes, after).await?;
            let Some(read) = read else { return Ok(None) };
            if read.more {
                all.more = true;
                let last = read.entries.last().map(|(cursor, _)| *cursor);
                complete_to = complete_to.into_iter().chain(last).min();
            }
            all.entries.extend(read.entries);
        }
        if !partitions.is_single() {
            all.entries.sort_by_key(|(cursor, _)| *cursor);
            all.entries.retain(|(cursor, _)| complete_to.is_none_or(|last| *cursor <= last));
        }
        Ok(Some(all))
    }

    /// Reads the next entries of one partition. `None` if it is closed.
    async fn browse_partition(
        &self,
        partition: &Arc<Partition>,
        params: &BrowseParams<'_>,
        limit: usize,
        bytes: usize,
        after: Option<Cursor>,
    ) -> Result<Option<Entries>> {
        let mut call = self.scripts.browse.on([&**partition]);
        let state = match params.state {
            JobState::Scheduled => "s",
            JobState::Ready => "r",
            JobState::Running => "l",
            JobState::Dead => "d",
            // A state that this version does not have: no job is in it.
            _ => return Ok(Some(Entries { entries: Vec::new(), more: false })),
        };
        call.arg(state).arg(limit).arg(bytes);
        if let Some(Cursor { at, seq }) = after {
            call.arg(at.as_millis()).arg(&seq.to_be_bytes()[..]);
        }
        let Some(answer) = self.run_on(BROWSE, partition, call).await? else {
            return Ok(None);
        };
        match read_entries(answer, params) {
            Some(entries) => Ok(Some(entries)),
            None => unexpected(BROWSE),
        }
    }

    /// One job by id, live (waiting or leased) or dead; or by key, live only.
    pub(crate) async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let jobs = std::slice::from_ref(job);
        let views = self.route(GET, jobs, Option::is_none, |chunk| Box::pin(self.get_chunk(chunk)));
        Ok(views.await?.into_iter().next().flatten())
    }

    /// Makes one call for each job. The outer `None` says that the partition is closed, an inner
    /// one that there is no such job.
    async fn get_chunk(&self, chunk: Chunk<'_, JobRef>) -> Result<Option<Vec<Option<JobView>>>> {
        let mut views = Vec::with_capacity(chunk.items.len());
        for job in &chunk.items {
            let mut call = self.scripts.get.on([&*chunk.partition]);
            call.arg(target_arg(&job.target));
            let Some(answer) = self.run_on(GET, &chunk.partition, call).await? else {
                return Ok(None);
            };
            match read_view(answer, &job.queue) {
                Some(view) => views.push(view),
                None => return unexpected(GET),
            }
        }
        Ok(Some(views))
    }
}

/// Reads the reply of `scripts/browse.lua`. `None` if it is malformed.
fn read_entries(answer: Value, params: &BrowseParams<'_>) -> Option<Entries> {
    let mut reply = Reply::new(answer)?;
    let more = reply.bytes()? == "1";
    let mut entries = Vec::new();
    while !reply.is_empty() {
        let (handle, position, at) = (reply.bytes()?, reply.bytes()?, reply.number()?);
        let (record, state, reason) = (reply.bytes()?, reply.bytes()?, reply.bytes()?);
        let seq = u128::from_be_bytes(position[..].try_into().ok()?);
        let cursor = Cursor { at: Timestamp::from_millis(at), seq };
        let stored = StoredJob { handle, at, record, state, reason };
        entries.push((cursor, view(params.queue, params.state, stored)));
    }
    Some(Entries { entries, more })
}

/// Reads the reply of `scripts/get.lua`. The outer `None` says that it is malformed, the inner one
/// that there is no such job.
fn read_view(answer: Value, queue: &QueueName) -> Option<Option<JobView>> {
    let mut reply = Reply::new(answer)?;
    if reply.is_empty() {
        return Some(None);
    }
    let now = reply.number()?;
    let handle = reply.bytes()?;
    let letter = reply.bytes()?;
    let at = reply.number()?;
    let job_state = match &letter[..] {
        b"l" => JobState::Running,
        b"d" => JobState::Dead,
        _ if at > now => JobState::Scheduled,
        _ => JobState::Ready,
    };
    let (record, state, reason) = (reply.bytes()?, reply.bytes()?, reply.bytes()?);
    Some(view(queue, job_state, StoredJob { handle, at, record, state, reason }))
}

/// A stored job as operators see it, even if its record is malformed. `None` if its handle does not
/// have the length of one.
fn view(queue: &QueueName, job_state: JobState, stored: StoredJob) -> Option<JobView> {
    let state = StoredState::decode(&stored.state);
    let at = Timestamp::from_millis(stored.at);
    let (due, leased_until, dead) = match job_state {
        JobState::Running => (state.due, Some(at), None),
        JobState::Dead => (state.due, None, Some((record::decode_reason(&stored.reason), at))),
        _ => (stored.at, None, None),
    };
    let StoredJob { handle, record, .. } = stored;
    let job = record::decode(queue, &handle, &record, due, state)
        .or_else(|| record::undecodable(queue, &handle, &record, due, state))?;
    Some(JobView { job, state: job_state, leased_until, dead })
}

/// Adds the counts of one partition to those of its queue. `None` if the reply is malformed.
fn add_counts(stats: &mut QueueStats, mut reply: Reply) -> Option<()> {
    let mut count = || u64::try_from(reply.number()?).ok();
    let (ready, waiting, running, dead) = (count()?, count()?, count()?, count()?);
    stats.ready += ready;
    stats.scheduled += waiting.checked_sub(ready)?;
    stats.running += running;
    stats.dead += dead;
    let next_due = reply.number_or_nil()?.map(Timestamp::from_millis);
    stats.next_due = stats.next_due.into_iter().chain(next_due).min();
    let totals = stats.totals.get_or_insert_default();
    let mut fields = reply.list()?;
    while !fields.is_empty() {
        let (name, value) = (fields.bytes()?, fields.bytes()?);
        let total = match &name[..] {
            b"created" => &mut totals.created,
            b"done" => &mut totals.done,
            b"skipped" => &mut totals.skipped,
            b"cancelled" => &mut totals.cancelled,
            b"replaced" => &mut totals.replaced,
            b"removed" => &mut totals.removed,
            name => {
                stats.paused |= name == b"paused";
                continue;
            }
        };
        // Another program may have written there: a malformed total must not hide the rest.
        *total += str::from_utf8(&value).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    }
    Some(())
}
