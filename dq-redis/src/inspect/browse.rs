//! Lists the jobs of a queue in one state, page by page.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use dq_core::{BrowseParams, Cursor, JobState, JobView, Order, Page, Result, Timestamp};
use futures_util::future::try_join_all;
use redis::Value;

use super::StoredJob;
use crate::error::unexpected;
use crate::keys::Partition;
use crate::reply::{self, Reply};
use crate::resize::retry_if_closed;
use crate::shards::partitions::QueuePartitions;
use crate::store::RedisBackend;

/// Maximum record bytes per read, divided among the partitions. Each call returns at least one
/// record.
const PAGE_BYTES: usize = 1024 * 1024;

/// The same without payloads: the server reads whole records but does not send them.
const HEADER_PAGE_BYTES: usize = 8 * PAGE_BYTES;

/// Maximum number of jobs per browse call; a page may take several calls.
const PAGE_JOBS: usize = 250;

#[derive(Default)]
struct Listing {
    /// `None` for an entry that is no job.
    entries: Vec<(Cursor, Option<JobView>)>,
    has_more: bool,
}

impl Listing {
    /// Sorts the entries of several partitions. Removes entries after `complete_to`, because a
    /// partition may have others before them.
    fn merge(&mut self, order: Order, complete_to: Option<Cursor>) {
        self.entries.sort_by_key(|(cursor, _)| *cursor);
        if order == Order::Descending {
            self.entries.reverse();
        }
        let is_complete = |cursor: Cursor| match (complete_to, order) {
            (None, _) => true,
            (Some(last), Order::Ascending) => cursor <= last,
            (Some(last), Order::Descending) => cursor >= last,
        };
        self.entries.retain(|(cursor, _)| is_complete(*cursor));
    }

    /// Hides entries before these indices, and ends the listing after them.
    fn show_only(&mut self, indices: Range<usize>) {
        for (_, view) in self.entries.iter_mut().take(indices.start) {
            *view = None;
        }
        if self.entries.len() >= indices.end {
            self.entries.truncate(indices.end);
            self.has_more = false;
        }
    }
}

impl RedisBackend {
    pub(crate) async fn list_jobs(&self, params: &BrowseParams<'_>) -> Result<Page> {
        let mut page = Page::new(Vec::new(), params.after);
        loop {
            let limit = params.limit - page.jobs.len();
            let next = retry_if_closed!(self, self.next_entries(params, limit, page.next))?;
            let mut entries = next.entries.into_iter();
            for (cursor, view) in entries.by_ref() {
                page.next = Some(cursor);
                page.jobs.extend(view);
                if page.jobs.len() >= params.limit {
                    break;
                }
            }
            if !next.has_more && entries.len() == 0 {
                page.next = None;
                return Ok(page);
            }
            if page.jobs.len() >= params.limit {
                return Ok(page);
            }
        }
    }

    /// `None` if a partition is closed.
    async fn next_entries(
        &self,
        params: &BrowseParams<'_>,
        limit: usize,
        after: Option<Cursor>,
    ) -> Result<Option<Listing>> {
        let partitions = self.partitions_of(params.queue).await?;
        let Some(listed) = self.listed(&partitions, params, after).await? else {
            return Ok(None);
        };
        let limit = limit.saturating_add(listed.start).min(PAGE_JOBS);
        self.browse_all(&partitions, params, limit, after, listed).await
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
    pub(super) async fn count_ends(
        &self,
        partitions: &QueuePartitions,
        after: Option<Cursor>,
    ) -> Result<Option<usize>> {
        let counts = partitions.all.iter().map(|partition| async move {
            let mut call = self.scripts.ends.on([&**partition]);
            call.arg(self.history_args(partition));
            if let Some(Cursor { at, seq }) = after {
                call.arg(at.as_millis()).arg(&seq.to_be_bytes()[..]);
            }
            let answer = self.run_on(partition, call).await?;
            answer.map(|answer| reply::count(&answer)).transpose()
        });
        let sum: Option<u64> = try_join_all(counts).await?.into_iter().sum();
        Ok(sum.map(|sum| usize::try_from(sum).unwrap_or(usize::MAX)))
    }

    /// Reads the next entries of all partitions. If a partition has more, the result ends at its
    /// last entry read. `None` if a partition is closed.
    async fn browse_all(
        &self,
        partitions: &QueuePartitions,
        params: &BrowseParams<'_>,
        limit: usize,
        after: Option<Cursor>,
        listed: Range<usize>,
    ) -> Result<Option<Listing>> {
        let mut all = Listing::default();
        let page_bytes = if params.payloads { PAGE_BYTES } else { HEADER_PAGE_BYTES };
        let mut complete_to: Option<Cursor> = None;
        for partition in &partitions.all {
            let bytes = page_bytes / partitions.all.len();
            let read = self.browse_partition(partition, params, limit, bytes, after).await?;
            let Some(read) = read else { return Ok(None) };
            if read.has_more {
                all.has_more = true;
                let last = read.entries.last().map(|(cursor, _)| *cursor);
                let both = complete_to.into_iter().chain(last);
                complete_to = match params.order {
                    Order::Ascending => both.min(),
                    Order::Descending => both.max(),
                };
            }
            all.entries.extend(read.entries);
        }
        if !partitions.is_single() {
            all.merge(params.order, complete_to);
        }
        all.show_only(listed);
        Ok(Some(all))
    }

    /// `None` if the partition is closed.
    async fn browse_partition(
        &self,
        partition: &Arc<Partition>,
        params: &BrowseParams<'_>,
        limit: usize,
        bytes: usize,
        after: Option<Cursor>,
    ) -> Result<Option<Listing>> {
        let mut call = self.scripts.browse.on([&**partition]);
        let history = self.history_args(partition);
        let state = match params.state {
            JobState::Scheduled => "s",
            JobState::Ready => "r",
            JobState::Running => "l",
            JobState::Dead => "d",
            JobState::Ended if history.0 > 0 => "e",
            // There is no history, or this version does not know the state.
            _ => return Ok(Some(Listing::default())),
        };
        let mut form = match params.order {
            Order::Ascending => "a".to_owned(),
            Order::Descending => "d".to_owned(),
        };
        if params.payloads {
            form.push('p');
        }
        call.arg(state).arg(form).arg(limit).arg(bytes).arg(history);
        if let Some(Cursor { at, seq }) = after {
            call.arg(at.as_millis()).arg(&seq.to_be_bytes()[..]);
        }
        let answer = self.run_on(partition, call).await?;
        answer.map(|answer| read_entries(answer, params)).transpose()
    }
}

fn read_entries(answer: Value, params: &BrowseParams<'_>) -> Result<Listing> {
    let mut reply = Reply::new(answer)?;
    let has_more = reply.bytes()? == "1";
    let mut entries = Vec::new();
    while !reply.is_empty() {
        let (handle, position, time) = (reply.bytes()?, reply.bytes()?, reply.number()?);
        let stored = StoredJob::read(&mut reply, handle, time)?;
        let seq = u128::from_be_bytes(position[..].try_into().map_err(|_| unexpected())?);
        let cursor = Cursor { at: Timestamp::from_millis(time), seq };
        let mut view = stored.view(params.queue, params.state);
        if let Some(view) = view.as_mut().filter(|_| !params.payloads) {
            // The payload of an undecodable record is the whole record, which the script cannot cut
            // off.
            view.job.payload = Bytes::new();
        }
        entries.push((cursor, view));
    }
    Ok(Listing { entries, has_more })
}
