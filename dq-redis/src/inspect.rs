//! Stats, browse, forecast and get. All scripts requeue jobs whose lease has expired and repair
//! damage by other programs, so these calls need the primary.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use dq_core::{
    BrowseParams, Cursor, JobRef, JobState, JobView, Order, Page, QueueName, QueueStats, Result,
    Timestamp,
};
use futures_util::future::try_join_all;
use redis::Value;

use crate::args::target_arg;
use crate::error::unexpected;
use crate::handle;
use crate::keys::Partition;
use crate::record::{self, Note, Numbers};
use crate::reply::{self, Refusal, Reply};
use crate::shards::partitions::QueuePartitions;
use crate::store::RedisBackend;

const MAX_PARTITIONS: usize = 100;

/// Maximum record bytes per read, divided among the partitions. Each call returns at least one
/// record.
const PAGE_BYTES: usize = 1024 * 1024;

/// Without payloads: the server reads whole records but does not send them.
const HEADER_PAGE_BYTES: usize = 8 * PAGE_BYTES;

const FORECAST_TIMES: usize = 1_001;

/// Maximum number of jobs per browse call; a page may take several calls.
const PAGE_JOBS: usize = 250;

#[derive(Default)]
struct Entries {
    /// `None` for an entry that is no job.
    entries: Vec<(Cursor, Option<JobView>)>,
    more: bool,
}

struct StoredJob {
    handle: Bytes,
    /// The due time, or when the lease expires, the job died or the job ended.
    at: i64,
    record: Bytes,
    state: Bytes,
    reason: Bytes,
}

impl StoredJob {
    fn read(reply: &mut Reply, handle: Bytes, at: i64) -> Result<Self> {
        let (record, state, reason) = (reply.bytes()?, reply.bytes()?, reply.bytes()?);
        Ok(Self { handle, at, record, state, reason })
    }
}

impl RedisBackend {
    pub(crate) async fn count_jobs(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let all_queues;
        let queues = if queues.is_empty() {
            all_queues = self.queues().await?;
            &all_queues[..]
        } else {
            queues
        };
        let mut all: Vec<QueueStats> =
            queues.iter().map(|queue| QueueStats::empty(queue.clone())).collect();
        let mut uncounted: Vec<usize> = (0..queues.len()).collect();
        let mut attempts = self.attempts();
        while !uncounted.is_empty() {
            attempts.next().await?;
            let mut partitions = Vec::with_capacity(uncounted.len());
            for &index in &uncounted {
                all[index] = QueueStats::empty(queues[index].clone());
                let queue_partitions = self.partitions_of(&queues[index]).await?;
                partitions.extend(queue_partitions.all.iter().map(|one| (index, Arc::clone(one))));
            }
            let per_call = if self.link.server().is_cluster() { 1 } else { MAX_PARTITIONS };
            let mut closed = Vec::new();
            for chunk in partitions.chunks(per_call) {
                let on = chunk.iter().map(|(_, partition)| &**partition);
                let mut reply = Reply::new(self.scripts.stats.on(on).run(&self.link).await?)?;
                for (index, partition) in chunk {
                    match reply.list_or_refusal()? {
                        Ok(counts) => add_counts(&mut all[*index], counts)?,
                        Err(Refusal::Closed) => closed.push((*index, Arc::clone(partition))),
                        Err(_) => return Err(unexpected()),
                    }
                }
            }
            closed.dedup_by_key(|(index, _)| *index);
            for (_, partition) in &closed {
                self.reload(partition).await?;
            }
            uncounted = closed.into_iter().map(|(index, _)| index).collect();
        }
        Ok(all)
    }

    pub(crate) async fn list_jobs(&self, params: &BrowseParams<'_>) -> Result<Page> {
        let mut page = Page::new(Vec::new(), params.after);
        let mut attempts = self.attempts();
        loop {
            let limit = params.limit - page.jobs.len();
            let partitions = self.partitions_of(params.queue).await?;
            let Some(listed) = self.listed(&partitions, params, page.next).await? else {
                attempts.next().await?;
                continue;
            };
            let limit = limit.saturating_add(listed.start).min(PAGE_JOBS);
            let entries = self.browse_all(&partitions, params, limit, page.next, listed).await?;
            let Some(Entries { entries, more }) = entries else {
                attempts.next().await?;
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

    /// The entry indices after a cursor that a listing shows: all, except in the history of a
    /// sharded queue. There the queue's limit counts, because each shard keeps more than its share.
    /// `None` if a partition is closed.
    async fn listed(
        &self,
        partitions: &QueuePartitions,
        params: &BrowseParams<'_>,
        after: Option<Cursor>,
    ) -> Result<Option<Range<usize>>> {
        if partitions.is_single() || params.state != JobState::Ended {
            return Ok(Some(0..usize::MAX));
        }
        let max = self.history.of(params.queue).max as usize;
        if params.order == Order::Descending && after.is_none() {
            return Ok(Some(0..max));
        }
        let count = self.count_ends(partitions, after).await?;
        Ok(count.map(|later| match params.order {
            Order::Ascending => later.saturating_sub(max)..usize::MAX,
            // The cursor's job counts, too.
            Order::Descending => 0..max.saturating_sub(later + 1),
        }))
    }

    /// Counts history jobs that ended after a cursor, or all. `None` if a partition is closed.
    async fn count_ends(
        &self,
        partitions: &QueuePartitions,
        after: Option<Cursor>,
    ) -> Result<Option<usize>> {
        let counts = partitions.all.iter().map(|partition| async move {
            let (max, age) = self.history_args(partition);
            let mut call = self.scripts.ends.on([&**partition]);
            call.arg(max).arg(age);
            if let Some(Cursor { at, seq }) = after {
                call.arg(at.as_millis()).arg(&seq.to_be_bytes()[..]);
            }
            let answer = self.run_on(partition, call).await?;
            answer.map(|answer| reply::count(&answer)).transpose()
        });
        let sum: Option<u64> = try_join_all(counts).await?.into_iter().sum();
        Ok(sum.map(|sum| usize::try_from(sum).unwrap_or(usize::MAX)))
    }

    /// Merges the next entries of all partitions in order. If a partition has more, the result ends
    /// at its last entry read, because its next one may belong there. Entries outside `listed`
    /// count as no jobs. `None` if a partition is closed.
    async fn browse_all(
        &self,
        partitions: &QueuePartitions,
        params: &BrowseParams<'_>,
        limit: usize,
        after: Option<Cursor>,
        listed: Range<usize>,
    ) -> Result<Option<Entries>> {
        let mut all = Entries::default();
        let is_ascending = params.order == Order::Ascending;
        let page_bytes = if params.payloads { PAGE_BYTES } else { HEADER_PAGE_BYTES };
        let mut complete_to: Option<Cursor> = None;
        for partition in &partitions.all {
            let bytes = page_bytes / partitions.all.len();
            let read = self.browse_partition(partition, params, limit, bytes, after).await?;
            let Some(read) = read else { return Ok(None) };
            if read.more {
                all.more = true;
                let last = read.entries.last().map(|(cursor, _)| *cursor);
                let both = complete_to.into_iter().chain(last);
                complete_to = if is_ascending { both.min() } else { both.max() };
            }
            all.entries.extend(read.entries);
        }
        if !partitions.is_single() {
            all.entries.sort_by_key(|(cursor, _)| *cursor);
            if !is_ascending {
                all.entries.reverse();
            }
            let is_complete = |cursor, last| match params.order {
                Order::Ascending => cursor <= last,
                Order::Descending => cursor >= last,
            };
            all.entries.retain(|(at, _)| complete_to.is_none_or(|last| is_complete(*at, last)));
        }
        for (_, view) in all.entries.iter_mut().take(listed.start) {
            *view = None;
        }
        if all.entries.len() >= listed.end {
            all.entries.truncate(listed.end);
            all.more = false;
        }
        Ok(Some(all))
    }

    async fn browse_partition(
        &self,
        partition: &Arc<Partition>,
        params: &BrowseParams<'_>,
        limit: usize,
        bytes: usize,
        after: Option<Cursor>,
    ) -> Result<Option<Entries>> {
        let mut call = self.scripts.browse.on([&**partition]);
        let (max, age) = self.history_args(partition);
        let state = match params.state {
            JobState::Scheduled => "s",
            JobState::Ready => "r",
            JobState::Running => "l",
            JobState::Dead => "d",
            JobState::Ended if max == 0 => return Ok(Some(Entries::default())),
            JobState::Ended => "e",
            // A state unknown to this version: no job is in it.
            _ => return Ok(Some(Entries::default())),
        };
        let mut form = match params.order {
            Order::Ascending => "a".to_owned(),
            Order::Descending => "d".to_owned(),
        };
        if params.payloads {
            form.push('p');
        }
        call.arg(state).arg(form).arg(limit).arg(bytes).arg(max).arg(age);
        if let Some(Cursor { at, seq }) = after {
            call.arg(at.as_millis()).arg(&seq.to_be_bytes()[..]);
        }
        let answer = self.run_on(partition, call).await?;
        answer.map(|answer| read_entries(answer, params)).transpose()
    }

    pub(crate) async fn count_due(
        &self,
        queue: &QueueName,
        edges: &[Timestamp],
    ) -> Result<Vec<u64>> {
        let edges: Vec<i64> = edges.iter().map(|edge| edge.as_millis()).collect();
        let mut attempts = self.attempts();
        'again: loop {
            attempts.next().await?;
            let mut counts = vec![0; edges.len().saturating_sub(1)];
            for partition in &self.partitions_of(queue).await?.all {
                for first in (0..counts.len()).step_by(FORECAST_TIMES - 1) {
                    let last = (first + FORECAST_TIMES).min(edges.len());
                    let mut call = self.scripts.forecast.on([&**partition]);
                    call.arg(&edges[first..last]);
                    let Some(answer) = self.run_on(partition, call).await? else {
                        continue 'again;
                    };
                    let mut reply = Reply::new(answer)?;
                    for count in &mut counts[first..last - 1] {
                        *count += reply.count()?;
                    }
                }
            }
            return Ok(counts);
        }
    }

    /// By id the job may be live, dead or ended; by key it must be live (waiting or leased).
    pub(crate) async fn find_job(&self, job: &JobRef) -> Result<Option<JobView>> {
        let mut attempts = self.attempts();
        let (partitions, view) = loop {
            attempts.next().await?;
            let partitions = self.partitions_of(&job.queue).await?;
            let (first, others) = partitions.candidates(&job.target);
            let mut answers = vec![self.find_in(partitions.shard(first), job).await?];
            if let Some(None) = answers[0] {
                let calls = others.iter().map(|shard| self.find_in(partitions.shard(*shard), job));
                answers.extend(try_join_all(calls).await?);
            }
            let is_closed = answers.iter().any(Option::is_none);
            match answers.into_iter().flatten().flatten().next() {
                Some(view) => break (partitions, view),
                None if is_closed => {}
                None => return Ok(None),
            }
        };
        let Some(ended) = view.ended.as_ref().filter(|_| !partitions.is_single()) else {
            return Ok(Some(view));
        };
        let handle = handle::handle(view.job.id);
        let seq = handle.iter().fold(0, |seq, byte| seq << 8 | u128::from(*byte));
        // If the shards change meanwhile, skip the limit: the job was there a moment ago.
        let later = self.count_ends(&partitions, Some(Cursor { at: ended.at, seq })).await?;
        let max = self.history.of(&job.queue).max as usize;
        Ok(Some(view).filter(|_| later.unwrap_or(0) < max))
    }

    /// The outer `None` means a closed partition, the inner one a missing job.
    async fn find_in(
        &self,
        partition: &Arc<Partition>,
        job: &JobRef,
    ) -> Result<Option<Option<JobView>>> {
        let mut call = self.scripts.get.on([&**partition]);
        call.arg(target_arg(&job.target));
        match self.history_args(partition) {
            (0, _) => call.arg(-1),
            (_, age) => call.arg(age),
        };
        let answer = self.run_on(partition, call).await?;
        answer.map(|answer| read_view(answer, &job.queue)).transpose()
    }
}

fn read_entries(answer: Value, params: &BrowseParams<'_>) -> Result<Entries> {
    let mut reply = Reply::new(answer)?;
    let more = reply.bytes()? == "1";
    let mut entries = Vec::new();
    while !reply.is_empty() {
        let (handle, position, at) = (reply.bytes()?, reply.bytes()?, reply.number()?);
        let stored = StoredJob::read(&mut reply, handle, at)?;
        let seq = u128::from_be_bytes(position[..].try_into().map_err(|_| unexpected())?);
        let cursor = Cursor { at: Timestamp::from_millis(at), seq };
        let mut view = view(params.queue, params.state, stored);
        if let Some(view) = view.as_mut().filter(|_| !params.payloads) {
            // The script cannot cut the payload off an undecodable record: here it is the whole
            // record.
            view.job.payload = Bytes::new();
        }
        entries.push((cursor, view));
    }
    Ok(Entries { entries, more })
}

fn read_view(answer: Value, queue: &QueueName) -> Result<Option<JobView>> {
    let mut reply = Reply::new(answer)?;
    if reply.is_empty() {
        return Ok(None);
    }
    let now = reply.number()?;
    let (handle, letter, at) = (reply.bytes()?, reply.bytes()?, reply.number()?);
    let job_state = match &letter[..] {
        b"l" => JobState::Running,
        b"d" => JobState::Dead,
        b"e" => JobState::Ended,
        _ if at > now => JobState::Scheduled,
        _ => JobState::Ready,
    };
    Ok(view(queue, job_state, StoredJob::read(&mut reply, handle, at)?))
}

/// Shows a stored job, even with a malformed record. `None` if the handle has another length, or if
/// an ended job is malformed.
fn view(queue: &QueueName, job_state: JobState, stored: StoredJob) -> Option<JobView> {
    let at = Timestamp::from_millis(stored.at);
    if job_state == JobState::Ended {
        return record::decode_past(queue, &stored.handle, &stored.record, at);
    }
    let numbers = Numbers::decode(&stored.state);
    let note = Note::decode(&stored.state);
    let (due, leased_until, dead) = match job_state {
        JobState::Running => (numbers.due, Some(at), None),
        JobState::Dead => (numbers.due, None, Some((record::decode_reason(&stored.reason), at))),
        _ => (stored.at, None, None),
    };
    let StoredJob { handle, record, .. } = stored;
    let job = record::decode(queue, &handle, &record, due, numbers)
        .or_else(|| record::undecodable(queue, &handle, &record, due, numbers))?;
    let mut view = JobView::new(job, job_state);
    if job_state == JobState::Running {
        view.leased_since = note.leased_since;
        view.worker = note.worker;
    }
    view.last_error = note.last_error;
    view.leased_until = leased_until;
    view.dead = dead;
    Some(view)
}

fn add_counts(stats: &mut QueueStats, mut reply: Reply) -> Result<()> {
    let (ready, waiting) = (reply.count()?, reply.count()?);
    stats.ready += ready;
    stats.scheduled += waiting.checked_sub(ready).ok_or_else(unexpected)?;
    stats.running += reply.count()?;
    stats.dead += reply.count()?;
    stats.next_due = stats.next_due.into_iter().chain(reply.time_or_nil()?).min();
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
    Ok(())
}
