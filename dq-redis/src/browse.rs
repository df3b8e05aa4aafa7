//! Looking at jobs: counts, pages, single ones.

use std::sync::Arc;

use bytes::Bytes;
use dq_core::{
    BrowseParams, Cursor, JobRef, JobState, JobView, Page, QueueName, QueueStats, Result, Timestamp,
};
use redis::Value;

use crate::batch::Chunk;
use crate::error::unexpected;
use crate::keys::Lane;
use crate::record::{self, State};
use crate::reply::Reply;
use crate::schedule::target;
use crate::shards::adopt::Tries;
use crate::shards::lanes::Spread;
use crate::store::Store;

const STATS: &str = "stats";
const BROWSE: &str = "browse";
const GET: &str = "get";

/// Queues of one call.
const LANES: usize = 100;

/// Bytes of records of one call.
const PAGE_BYTES: usize = 1024 * 1024;

/// Jobs of one call; a page may take several.
const PAGE_JOBS: usize = 250;

impl Store {
    /// Counts of these queues, or of all.
    pub(crate) async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let known;
        let queues = if queues.is_empty() {
            known = self.queues(STATS).await?;
            &known[..]
        } else {
            queues
        };
        self.adopt(STATS, queues).await?;
        let mut all: Vec<QueueStats> =
            queues.iter().map(|queue| QueueStats::empty(queue.clone())).collect();
        let mut open: Vec<usize> = (0..queues.len()).collect();
        while !open.is_empty() {
            let spreads = self.spreads(open.iter().map(|place| &queues[*place]));
            let mut lanes = Vec::with_capacity(open.len());
            for &place in &open {
                all[place] = QueueStats::empty(queues[place].clone());
                let shards = &spreads[&queues[place]].lanes;
                lanes.extend(shards.iter().map(|lane| (place, lane)));
            }
            let per_call = if self.link.server().is_cluster() { 1 } else { LANES };
            for some in lanes.chunks(per_call) {
                self.add_stats(some, &mut all).await?;
            }
            // There may be more shards than were known.
            open.retain(|place| {
                let queue = &queues[*place];
                self.lanes.spread(queue).layout.is_newer(&spreads[queue].layout)
            });
        }
        Ok(all)
    }

    /// Adds the counts of some lanes to those of their queues.
    async fn add_stats(&self, lanes: &[(usize, &Arc<Lane>)], all: &mut [QueueStats]) -> Result<()> {
        let call = self.scripts.stats.on(lanes.iter().map(|(_, lane)| &***lane));
        let answer = call.run(&self.link, STATS).await?;
        let mut read = |answer| {
            let mut reply = Reply::new(answer)?;
            for (place, lane) in lanes {
                let layout = add_counts(&mut all[*place], reply.list()?)?;
                self.hear(lane, &layout);
            }
            Some(())
        };
        match read(answer) {
            Some(()) => Ok(()),
            None => unexpected(STATS),
        }
    }

    /// One page of a listing.
    pub(crate) async fn browse(&self, params: &BrowseParams<'_>) -> Result<Page> {
        self.adopt(BROWSE, [params.queue]).await?;
        let mut page = Page { jobs: Vec::new(), next: params.after };
        let mut tries = Tries::default();
        loop {
            let limit = params.limit - page.jobs.len();
            let spread = self.lanes.spread(params.queue);
            let some = self.browse_some(&spread, params, limit.min(PAGE_JOBS), page.next).await?;
            let Some(Listed { entries, more }) = some else {
                tries.again(BROWSE)?;
                continue;
            };
            let mut left = entries.into_iter();
            for (cursor, view) in left.by_ref() {
                page.next = Some(cursor);
                page.jobs.extend(view);
                if page.jobs.len() >= params.limit {
                    break;
                }
            }
            if !more && left.len() == 0 {
                page.next = None;
                return Ok(page);
            }
            if page.jobs.len() >= params.limit {
                return Ok(page);
            }
        }
    }

    /// What comes after a place in all shards, as far as is certain that nothing lies between.
    /// `None` if the layout is not the one that was believed in.
    async fn browse_some(
        &self,
        spread: &Spread,
        params: &BrowseParams<'_>,
        limit: usize,
        after: Option<Cursor>,
    ) -> Result<Option<Listed>> {
        let mut listed = Listed { entries: Vec::new(), more: false };
        let mut certain: Option<Cursor> = None;
        for lane in &spread.lanes {
            let bytes = PAGE_BYTES / spread.lanes.len();
            let Some(some) = self.browse_lane(lane, params, limit, bytes, after).await? else {
                return Ok(None);
            };
            if some.more {
                listed.more = true;
                let last = some.entries.last().map(|(cursor, _)| *cursor);
                certain = certain.into_iter().chain(last).min();
            }
            listed.entries.extend(some.entries);
        }
        if !spread.is_single() {
            listed.entries.sort_by_key(|(cursor, _)| *cursor);
            listed.entries.retain(|(cursor, _)| certain.is_none_or(|certain| *cursor <= certain));
        }
        Ok(Some(listed))
    }

    async fn browse_lane(
        &self,
        lane: &Lane,
        params: &BrowseParams<'_>,
        limit: usize,
        bytes: usize,
        after: Option<Cursor>,
    ) -> Result<Option<Listed>> {
        let mut call = self.scripts.browse.on([lane]);
        let state = match params.state {
            JobState::Scheduled => "s",
            JobState::Ready => "r",
            JobState::Running => "l",
            JobState::Dead => "d",
            // A state of a later version: there are no jobs in it here.
            _ => return Ok(Some(Listed { entries: Vec::new(), more: false })),
        };
        call.arg(state).arg(limit).arg(bytes);
        if let Some(Cursor { at, seq }) = after {
            call.arg(at.as_millis()).arg(&seq.to_be_bytes()[..]);
        }
        let Some(answer) = self.ask(BROWSE, lane, call).await? else {
            return Ok(None);
        };
        match self.read_page(answer, params) {
            Some(listed) => Ok(Some(listed)),
            None => unexpected(BROWSE),
        }
    }

    fn read_page(&self, answer: Value, params: &BrowseParams<'_>) -> Option<Listed> {
        let mut reply = Reply::new(answer)?;
        let more = reply.bytes()? == "1";
        let mut entries = Vec::new();
        while !reply.is_empty() {
            let (handle, place, at) = (reply.bytes()?, reply.bytes()?, reply.number()?);
            let (record, state, reason) = (reply.bytes()?, reply.bytes()?, reply.bytes()?);
            let seq = u128::from_be_bytes(place[..].try_into().ok()?);
            let cursor = Cursor { at: Timestamp::from_millis(at), seq };
            let found = Found { handle, at, record, state, reason };
            entries.push((cursor, self.view(params.queue, params.state, found)));
        }
        Some(Listed { entries, more })
    }

    /// One job, live or dead.
    pub(crate) async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let jobs = std::slice::from_ref(job);
        let views = self.seek(GET, jobs, Option::is_none, |chunk| Box::pin(self.look_at(chunk)));
        Ok(views.await?.into_iter().next().flatten())
    }

    async fn look_at(&self, chunk: Chunk<'_, JobRef>) -> Result<Vec<(usize, Option<JobView>)>> {
        let mut views = Vec::with_capacity(chunk.items.len());
        for (place, job) in chunk.items {
            views.push((place, self.look_at_one(&chunk.lane, job).await?));
        }
        Ok(views)
    }

    async fn look_at_one(&self, lane: &Lane, job: &JobRef) -> Result<Option<JobView>> {
        let mut call = self.scripts.get.on([lane]);
        call.arg(target(&job.target));
        let answer = call.run(&self.link, GET).await?;
        let read = |answer| {
            let mut reply = Reply::new(answer)?;
            if reply.is_empty() {
                return Some(None);
            }
            if reply.len() == 1 {
                self.hear(lane, &reply.bytes()?);
                return Some(None);
            }
            let now = reply.number()?;
            let handle = reply.bytes()?;
            let place = reply.bytes()?;
            let at = reply.number()?;
            let state = match &place[..] {
                b"l" => JobState::Running,
                b"d" => JobState::Dead,
                _ if at > now => JobState::Scheduled,
                _ => JobState::Ready,
            };
            let (record, packed, reason) = (reply.bytes()?, reply.bytes()?, reply.bytes()?);
            let found = Found { handle, at, record, state: packed, reason };
            Some(self.view(&job.queue, state, found))
        };
        match read(answer) {
            Some(view) => Ok(view),
            None => unexpected(GET),
        }
    }

    /// A job as it is looked at, even if its record cannot be read; `None` if it is no job at all.
    fn view(&self, queue: &QueueName, state: JobState, found: Found) -> Option<JobView> {
        let packed = State::decode(&found.state);
        let at = Timestamp::from_millis(found.at);
        let (due, leased_until, dead) = match state {
            JobState::Running => (packed.due, Some(at), None),
            JobState::Dead => (packed.due, None, Some((record::decode_reason(&found.reason), at))),
            _ => (found.at, None, None),
        };
        let Found { handle, record, .. } = found;
        let job = record::decode(queue, &handle, &record, due, packed)
            .or_else(|| record::unreadable(queue, &handle, &record, due, packed))?;
        Some(JobView { job, state, leased_until, dead })
    }
}

/// Part of a listing.
struct Listed {
    /// With the place of each, also if it is no job.
    entries: Vec<(Cursor, Option<JobView>)>,
    more: bool,
}

struct Found {
    handle: Bytes,
    at: i64,
    record: Bytes,
    state: Bytes,
    reason: Bytes,
}

/// Adds the counts of one lane to those of its queue. The layout that it holds, or nothing.
fn add_counts(stats: &mut QueueStats, mut reply: Reply) -> Option<Bytes> {
    let mut count = || u64::try_from(reply.number()?).ok();
    let (ready, waiting, running, dead) = (count()?, count()?, count()?, count()?);
    stats.ready += ready;
    stats.scheduled += waiting.checked_sub(ready)?;
    stats.running += running;
    stats.dead += dead;
    let next_due = reply.maybe()?.map(Timestamp::from_millis);
    stats.next_due = stats.next_due.into_iter().chain(next_due).min();
    let totals = stats.totals.get_or_insert_default();
    let mut layout = Bytes::new();
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
            b"layout" => {
                layout = value;
                continue;
            }
            name => {
                stats.paused |= name == b"paused";
                continue;
            }
        };
        // Others may have written there: a total that is none must not hide the rest.
        *total += str::from_utf8(&value).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    }
    Some(layout)
}
