//! Looking at jobs: counts, pages, single ones.

use bytes::Bytes;
use dq_core::{
    BrowseParams, Cursor, JobRef, JobState, JobView, Page, QueueName, QueueStats, Result,
    Timestamp, Totals,
};
use redis::Value;

use crate::error::unexpected;
use crate::record::{self, State};
use crate::reply::Reply;
use crate::schedule::target;
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
        let mut all = Vec::with_capacity(queues.len());
        let per_call = if self.link.server().is_cluster() { 1 } else { LANES };
        for some in queues.chunks(per_call) {
            let lanes: Vec<_> = some.iter().map(|queue| self.lanes.of(queue)).collect();
            let call = self.scripts.stats.on(lanes.iter().map(|lane| &**lane));
            let answer = call.run(&self.link, STATS).await?;
            match Reply::new(answer).and_then(|mut reply| read_stats(some, &mut reply)) {
                Some(stats) => all.extend(stats),
                None => return unexpected(STATS),
            }
        }
        Ok(all)
    }

    /// One page of a listing.
    pub(crate) async fn browse(&self, params: &BrowseParams<'_>) -> Result<Page> {
        let mut page = Page { jobs: Vec::new(), next: params.after };
        loop {
            let limit = params.limit - page.jobs.len();
            let more = self.browse_some(params, limit.min(PAGE_JOBS), &mut page).await?;
            if !more {
                page.next = None;
            }
            if !more || page.jobs.len() >= params.limit {
                return Ok(page);
            }
        }
    }

    async fn browse_some(
        &self,
        params: &BrowseParams<'_>,
        limit: usize,
        page: &mut Page,
    ) -> Result<bool> {
        let lane = self.lanes.of(params.queue);
        let mut call = self.scripts.browse.on([&*lane]);
        let state = match params.state {
            JobState::Scheduled => "s",
            JobState::Ready => "r",
            JobState::Running => "l",
            JobState::Dead => "d",
            // A state of a later version: there are no jobs in it here.
            _ => return Ok(false),
        };
        call.arg(state).arg(limit).arg(PAGE_BYTES);
        if let Some(Cursor { at, seq }) = page.next {
            call.arg(at.as_millis()).arg(&seq.to_be_bytes()[..]);
        }
        let answer = call.run(&self.link, BROWSE).await?;
        match self.read_page(answer, params, page) {
            Some(more) => Ok(more),
            None => unexpected(BROWSE),
        }
    }

    fn read_page(&self, answer: Value, params: &BrowseParams<'_>, page: &mut Page) -> Option<bool> {
        let mut reply = Reply::new(answer)?;
        let more = reply.bytes()? == "1";
        while !reply.is_empty() {
            let (handle, place, at) = (reply.bytes()?, reply.bytes()?, reply.number()?);
            let (record, state, reason) = (reply.bytes()?, reply.bytes()?, reply.bytes()?);
            let seq = u128::from_be_bytes(place[..].try_into().ok()?);
            page.next = Some(Cursor { at: Timestamp::from_millis(at), seq });
            let found = Found { handle, at, record, state, reason };
            page.jobs.extend(self.view(params.queue, params.state, found));
        }
        Some(more)
    }

    /// One job, live or dead.
    pub(crate) async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let lane = self.lanes.of(&job.queue);
        let mut call = self.scripts.get.on([&*lane]);
        call.arg(target(&job.target));
        let answer = call.run(&self.link, GET).await?;
        let read = |answer| {
            let mut reply = Reply::new(answer)?;
            if reply.is_empty() {
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

struct Found {
    handle: Bytes,
    at: i64,
    record: Bytes,
    state: Bytes,
    reason: Bytes,
}

fn read_stats(queues: &[QueueName], reply: &mut Reply) -> Option<Vec<QueueStats>> {
    queues.iter().map(|queue| read_one(queue, reply.list()?)).collect()
}

fn read_one(queue: &QueueName, mut reply: Reply) -> Option<QueueStats> {
    let mut count = || u64::try_from(reply.number()?).ok();
    let (ready, waiting, running, dead) = (count()?, count()?, count()?, count()?);
    let next_due = reply.maybe()?.map(Timestamp::from_millis);
    let mut totals = Totals::default();
    let mut paused = false;
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
                paused |= name == b"paused";
                continue;
            }
        };
        // Others may have written there: a total that is none must not hide the rest.
        *total = str::from_utf8(&value).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    }
    Some(QueueStats {
        queue: queue.clone(),
        scheduled: waiting.checked_sub(ready)?,
        ready,
        running,
        dead,
        paused,
        next_due,
        totals: Some(totals),
    })
}
