//! Stats, browse, get and forecast.

use std::collections::HashMap;

use dq_core::{
    Cursor, JobId, JobRef, JobState, JobView, Order, Page, QueueName, QueueStats, Target,
    Timestamp, Totals,
};
use rusqlite::{OptionalExtension, Row, params};

use crate::ended_jobs::{EndedPosition, first_within};
use crate::error::{StoreError, StoreResult};
use crate::listings::Listing;
use crate::reader::ReadTx;
use crate::row::{self, LeaseShown};

#[derive(Debug, Clone, Copy)]
pub(crate) struct PageParams {
    pub(crate) state: JobState,
    pub(crate) after: Option<Cursor>,
    pub(crate) limit: usize,
    pub(crate) payloads: bool,
    pub(crate) order: Order,
}

#[derive(Debug, Default)]
struct LeaseCounts {
    running: HashMap<i64, u64>,
    lapsed: HashMap<i64, Lapsed>,
}

/// Jobs with expired leases: they wait again.
#[derive(Debug, Clone, Copy, Default)]
struct Lapsed {
    ready: u64,
    scheduled: u64,
    earliest_due: Option<i64>,
}

impl ReadTx<'_> {
    /// For all queues if the list is empty.
    pub(crate) fn stats(self, queues: &[QueueName]) -> StoreResult<Vec<QueueStats>> {
        let leases = self.lease_counts()?;
        if !queues.is_empty() {
            return queues.iter().map(|queue| self.queue_stats(queue, &leases)).collect();
        }
        self.queue_names()?.iter().map(|queue| self.queue_stats(queue, &leases)).collect()
    }

    fn queue_names(self) -> StoreResult<Vec<QueueName>> {
        let mut statement = self.conn.prepare_cached(&self.statements.queue_names)?;
        let names = statement.query_map([], |row| Ok(row::queue_name(row.get_ref(0)?).ok()))?;
        // Skips invalid names stored by other programs; `check` reports them.
        Ok(names.filter_map(rusqlite::Result::transpose).collect::<rusqlite::Result<_>>()?)
    }

    fn lease_counts(self) -> StoreResult<LeaseCounts> {
        let now = self.now.as_millis();
        let mut leases = LeaseCounts::default();
        let mut running = self.conn.prepare_cached(&self.statements.count_leases)?;
        let mut rows = running.query([now])?;
        while let Some(row) = rows.next()? {
            leases.running.insert(row.get(0)?, unsigned(row, 1)?);
        }
        let mut lapsed = self.conn.prepare_cached(&self.statements.lapsed_jobs)?;
        let mut rows = lapsed.query([now])?;
        while let Some(row) = rows.next()? {
            let of_queue: &mut Lapsed = leases.lapsed.entry(row.get(0)?).or_default();
            let due = row.get(1)?;
            if due <= now {
                of_queue.ready += 1;
            } else {
                of_queue.scheduled += 1;
            }
            of_queue.earliest_due = of_queue.earliest_due.into_iter().chain([due]).min();
        }
        Ok(leases)
    }

    fn queue_stats(self, name: &QueueName, leases: &LeaseCounts) -> StoreResult<QueueStats> {
        let row = self
            .conn
            .prepare_cached(&self.statements.queue_row)?
            .query_row([name.as_str()], |row| Ok((row.get(0)?, row.get(1)?, totals(row)?)))
            .optional()?;
        let mut stats = QueueStats::empty(name.clone());
        let Some((queue_id, paused, totals)) = row else {
            stats.totals = Some(Totals::default());
            return Ok(stats);
        };
        let now = self.now.as_millis();
        stats.paused = paused;
        stats.totals = Some(totals);
        let lapsed = leases.lapsed.get(&queue_id).copied().unwrap_or_default();
        stats.ready = lapsed.ready + self.count(&self.statements.count_due, &[queue_id, now])?;
        stats.scheduled =
            lapsed.scheduled + self.count(&self.statements.count_later, &[queue_id, now])?;
        stats.running = leases.running.get(&queue_id).copied().unwrap_or(0);
        stats.dead = self.count(&self.statements.count_dead, &[queue_id])?;
        let earliest_due: Option<i64> = self
            .conn
            .prepare_cached(&self.statements.earliest_due)?
            .query_row([queue_id], |row| row.get(0))
            .optional()?;
        stats.next_due =
            earliest_due.into_iter().chain(lapsed.earliest_due).min().map(Timestamp::from_millis);
        Ok(stats)
    }

    fn count(self, sql: &str, params: &[i64]) -> StoreResult<u64> {
        let params = rusqlite::params_from_iter(params);
        Ok(self.conn.prepare_cached(sql)?.query_row(params, |row| unsigned(row, 0))?)
    }

    /// Jobs in one state, ordered by a time and `seq`: the due time if waiting, the lease end if
    /// running, otherwise the time of death or end.
    pub(crate) fn browse(self, queue: &QueueName, page: PageParams) -> StoreResult<Page> {
        let Some(queue_id) = self.find_queue(queue)? else {
            return Ok(Page::new(Vec::new(), None));
        };
        let PageParams { state, after, limit, order, .. } = page;
        let now = self.now;
        let start = match order {
            Order::Ascending => (i64::MIN, 0),
            Order::Descending => (i64::MAX, i64::MAX),
        };
        let mut position = after.map_or(start, |cursor| {
            (cursor.at.as_millis(), i64::try_from(cursor.seq).unwrap_or(i64::MAX))
        });
        // Parameter `?4`. Scheduled jobs are due, and leases end, after it; ready jobs are due by
        // then; ended jobs end then or later. Excludes no dead job, even if the clock was set back.
        let mut time_bound = if state == JobState::Dead { i64::MAX } else { now.as_millis() };
        let mut first_ended = None;
        if state == JobState::Ended {
            let (conn, limit) = (self.conn, self.history.of(queue));
            let Some(first) = first_within(conn, self.statements, queue_id, limit, now)? else {
                return Ok(Page::new(Vec::new(), None));
            };
            if order == Order::Ascending {
                position = position.max((first.0, first.1.saturating_sub(1)));
            }
            time_bound = first.0;
            first_ended = Some(first);
        }
        // One extra row shows whether another page follows.
        let rows = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
        let bounds = [queue_id, position.0, position.1, time_bound, rows];
        let waiting = |row: &Row<'_>| Ok(row::waiting(row, queue, now));
        let lapsed = |row: &Row<'_>| Ok(row::lapsed(row, queue, now));
        let mut listed = match state {
            JobState::Scheduled => {
                let mut listed = self.listing(Listing::Scheduled, page, bounds, waiting)?;
                listed.extend(self.listing(Listing::LapsedScheduled, page, bounds, lapsed)?);
                listed
            }
            JobState::Ready => {
                let mut listed = self.listing(Listing::Ready, page, bounds, waiting)?;
                listed.extend(self.listing(Listing::LapsedReady, page, bounds, lapsed)?);
                listed
            }
            JobState::Running => self.listing(Listing::Running, page, bounds, |row| {
                Ok(row::running(row, queue, row::lease(row)?))
            })?,
            JobState::Dead => {
                self.listing(Listing::Dead, page, bounds, |row| row::dead(row, queue))?
            }
            JobState::Ended => {
                self.listing(Listing::Ended, page, bounds, |row| row::ended(row, queue))?
            }
            state => return Err(StoreError::unsupported(&state)),
        };
        listed.retain(|(position, _)| first_ended.is_none_or(|first| *position >= first));
        listed.sort_by_key(|(position, _)| *position);
        if order == Order::Descending {
            listed.reverse();
        }
        let more = listed.len() > limit;
        listed.truncate(limit);
        let next = listed.last().filter(|_| more).map(|((at, seq), _)| Cursor {
            at: Timestamp::from_millis(*at),
            seq: seq.unsigned_abs().into(),
        });
        Ok(Page::new(listed.into_iter().map(|(_, view)| view).collect(), next))
    }

    fn listing(
        self,
        listing: Listing,
        page: PageParams,
        bounds: [i64; 5],
        view: impl Fn(&Row<'_>) -> rusqlite::Result<JobView>,
    ) -> StoreResult<Vec<((i64, i64), JobView)>> {
        let sql = self.statements.listings.sql(listing, page.order, page.payloads);
        let mut statement = self.conn.prepare_cached(sql)?;
        let listed = statement.query_map(bounds, |row| {
            let (seq, at) = row::position(row)?;
            Ok(((at, seq), view(row)?))
        })?;
        Ok(listed.collect::<rusqlite::Result<_>>()?)
    }

    pub(crate) fn forecast(self, queue: &QueueName, edges: &[Timestamp]) -> StoreResult<Vec<u64>> {
        let edges: Vec<i64> = edges.iter().map(|edge| edge.as_millis()).collect();
        let Some(queue_id) = self.find_queue(queue)? else {
            return Ok(vec![0; edges.len().saturating_sub(1)]);
        };
        let mut lapsed_dues = Vec::new();
        let mut lapsed = self.conn.prepare_cached(&self.statements.lapsed_jobs)?;
        let mut rows = lapsed.query([self.now.as_millis()])?;
        while let Some(row) = rows.next()? {
            if row.get::<_, i64>(0)? == queue_id {
                lapsed_dues.push(row.get::<_, i64>(1)?);
            }
        }
        let mut counts = Vec::with_capacity(edges.len());
        for pair in edges.windows(2) {
            let (from, before) = (pair[0], pair[1]);
            let waiting = self.count(&self.statements.count_between, &[queue_id, from, before])?;
            let lapsed = lapsed_dues.iter().filter(|due| (from..before).contains(due)).count();
            counts.push(waiting + lapsed as u64);
        }
        Ok(counts)
    }

    /// By id live, dead or ended; by key only live.
    pub(crate) fn get(self, job: &JobRef) -> StoreResult<Option<JobView>> {
        let Some(queue_id) = self.find_queue(&job.queue)? else {
            return Ok(None);
        };
        let live: Option<i64> = match &job.target {
            Target::Id(id) => self
                .conn
                .prepare_cached(&self.statements.job_by_id)?
                .query_row([id.to_bytes()], |row| Ok((row.get(0)?, row.get(3)?)))
                .optional()?
                .and_then(|(seq, job_queue): (i64, i64)| (job_queue == queue_id).then_some(seq)),
            Target::Key(key) => self
                .conn
                .prepare_cached(&self.statements.job_by_key)?
                .query_row(params![queue_id, key.as_str()], |row| row.get(0))
                .optional()?,
        };
        match (live, &job.target) {
            (Some(seq), _) => self.view_live(seq, &job.queue).map(Some),
            (None, Target::Id(id)) => {
                let dead = self
                    .conn
                    .prepare_cached(&self.statements.view_dead)?
                    .query_row(params![id.to_bytes(), queue_id], |row| row::dead(row, &job.queue))
                    .optional()?;
                if dead.is_some() { Ok(dead) } else { self.view_ended(*id, queue_id, &job.queue) }
            }
            (None, Target::Key(_)) => Ok(None),
        }
    }

    fn view_live(self, seq: i64, queue: &QueueName) -> StoreResult<JobView> {
        let now = self.now.as_millis();
        let lease: Option<(i64, LeaseShown)> = self
            .conn
            .prepare_cached(&self.statements.lease_of)?
            .query_row([seq, now], |row| Ok((row.get(0)?, LeaseShown::read(row, 1)?)))
            .optional()?;
        Ok(self.conn.prepare_cached(&self.statements.view_job)?.query_row([seq], |row| {
            Ok(match lease {
                Some((until, shown)) if until > now => row::running(row, queue, shown),
                Some(_) => row::lapsed(row, queue, self.now),
                None => row::waiting(row, queue, self.now),
            })
        })?)
    }

    fn view_ended(
        self,
        id: JobId,
        queue_id: i64,
        queue: &QueueName,
    ) -> StoreResult<Option<JobView>> {
        let ended = self
            .conn
            .prepare_cached(&self.statements.view_ended)?
            .query_row(params![id.to_bytes(), queue_id], |row| {
                let (seq, at) = row::position(row)?;
                Ok(((at, seq), row::ended(row, queue)?))
            })
            .optional()?;
        let Some((position, view)) = ended else { return Ok(None) };
        Ok(self.is_in_history(queue, queue_id, position)?.then_some(view))
    }

    pub(crate) fn is_in_history(
        self,
        queue: &QueueName,
        queue_id: i64,
        position: EndedPosition,
    ) -> StoreResult<bool> {
        let limit = self.history.of(queue);
        let first = first_within(self.conn, self.statements, queue_id, limit, self.now)?;
        Ok(first.is_some_and(|first| position >= first))
    }

    fn find_queue(self, name: &QueueName) -> StoreResult<Option<i64>> {
        Ok(self
            .conn
            .prepare_cached(&self.statements.find_queue)?
            .query_row([name.as_str()], |row| row.get(0))
            .optional()?)
    }
}

fn totals(row: &Row<'_>) -> rusqlite::Result<Totals> {
    let mut totals = Totals::default();
    totals.created = unsigned(row, 2)?;
    totals.done = unsigned(row, 3)?;
    totals.skipped = unsigned(row, 4)?;
    totals.cancelled = unsigned(row, 5)?;
    totals.replaced = unsigned(row, 6)?;
    totals.removed = unsigned(row, 7)?;
    Ok(totals)
}

/// SQLite has no unsigned integers, but counts are never negative.
fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get(column).map(i64::unsigned_abs)
}
