//! Stats, browse, get and forecast.

use std::collections::HashMap;
use std::ops::Range;

use dq_core::{
    BrowseParams, Cursor, JobRef, JobState, JobView, Order, Page, QueueName, QueueStats, Target,
    Timestamp, Totals,
};
use rusqlite::{Row, params};

use crate::error::{StoreError, StoreResult};
use crate::listings::Listing;
use crate::reader::ReadTx;
use crate::row;

struct Leases {
    running: HashMap<i64, u64>,
    expired: HashMap<i64, Vec<i64>>,
}

impl ReadTx<'_> {
    pub(crate) fn stats(self, queues: &[QueueName]) -> StoreResult<Vec<QueueStats>> {
        let now = [self.now.as_millis()];
        let running = self
            .all(&self.statements.count_leases, now, |row| Ok((row.get(0)?, unsigned(row, 1)?)))?;
        let leases =
            Leases { running: running.into_iter().collect(), expired: self.expired_dues()? };
        if !queues.is_empty() {
            return queues.iter().map(|queue| self.queue_stats(queue, &leases)).collect();
        }
        let names = self.all(&self.statements.queue_names, [], |row| {
            Ok(row::queue_name(row.get_ref(0)?).ok())
        })?;
        // Skips invalid names stored by other programs; `check` reports them.
        names.iter().flatten().map(|queue| self.queue_stats(queue, &leases)).collect()
    }

    fn queue_stats(self, name: &QueueName, leases: &Leases) -> StoreResult<QueueStats> {
        let row = self.find(&self.statements.queue_row, [name.as_str()], |row| {
            Ok((row.get(0)?, row.get(1)?, totals(row)?))
        })?;
        let mut stats = QueueStats::empty(name.clone());
        let Some((queue_id, paused, totals)) = row else {
            stats.totals = Some(Totals::default());
            return Ok(stats);
        };
        let now = self.now.as_millis();
        stats.paused = paused;
        if let Some(gate) = self.gate(queue_id)? {
            stats.flow = gate.state(self.now);
        }
        stats.totals = Some(totals);
        let expired = leases.expired.get(&queue_id).map_or(&[][..], Vec::as_slice);
        stats.ready = self.count_waiting(queue_id, expired, i64::MIN..now + 1)?;
        stats.scheduled = self.count_waiting(queue_id, expired, now + 1..i64::MAX)?;
        stats.running = leases.running.get(&queue_id).copied().unwrap_or(0);
        stats.dead = self.one(&self.statements.count_dead, [queue_id], |row| unsigned(row, 0))?;
        let expired_due = expired.iter().min().copied().map(Timestamp::from_millis);
        stats.next_due = self.first_waiting(queue_id)?.into_iter().chain(expired_due).min();
        Ok(stats)
    }

    /// Due times of the jobs with expired leases, by queue id: they wait again.
    fn expired_dues(self) -> StoreResult<HashMap<i64, Vec<i64>>> {
        let mut dues: HashMap<i64, Vec<i64>> = HashMap::new();
        for (queue_id, due) in self.expired_jobs()? {
            dues.entry(queue_id).or_default().push(due);
        }
        Ok(dues)
    }

    fn count_waiting(self, queue_id: i64, expired: &[i64], dues: Range<i64>) -> StoreResult<u64> {
        let bounds = [queue_id, dues.start, dues.end];
        let waiting = self.one(&self.statements.count_due, bounds, |row| unsigned(row, 0))?;
        let parked = self.one(&self.statements.count_parked, bounds, |row| unsigned(row, 0))?;
        Ok(waiting + parked + expired.iter().filter(|due| dues.contains(due)).count() as u64)
    }

    /// Jobs in one state, ordered by a time and `seq`: the due time if waiting, the lease end if
    /// running, otherwise the time of death or end.
    pub(crate) fn browse(self, params: BrowseParams<'_>) -> StoreResult<Page> {
        let BrowseParams { queue, state, after, limit, payloads, order, .. } = params;
        let listings: &[Listing] = match state {
            JobState::Scheduled => {
                &[Listing::Scheduled, Listing::ExpiredScheduled, Listing::ParkedScheduled]
            }
            JobState::Ready => &[Listing::Ready, Listing::ExpiredReady, Listing::ParkedReady],
            JobState::Running => &[Listing::Running],
            JobState::Dead => &[Listing::Dead],
            JobState::Ended => &[Listing::Ended],
            state => return Err(StoreError::unsupported(&state)),
        };
        let Some(queue_id) = self.find_queue(queue)? else {
            return Ok(Page::new(Vec::new(), None));
        };
        let start = match order {
            Order::Ascending => (i64::MIN, 0),
            Order::Descending => (i64::MAX, i64::MAX),
        };
        let mut position = after.map_or(start, |cursor| {
            (cursor.at.as_millis(), i64::try_from(cursor.seq).unwrap_or(i64::MAX))
        });
        // Parameter `?4`. Scheduled jobs are due, and leases end, after it; ready jobs are due by
        // then; ended jobs end then or later. Excludes no dead job, even if the clock was set back.
        let mut time_bound = if state == JobState::Dead { i64::MAX } else { self.now.as_millis() };
        let mut first_ended = None;
        if state == JobState::Ended {
            let Some(first) = self.first_in_history(queue, queue_id)? else {
                return Ok(Page::new(Vec::new(), None));
            };
            if order == Order::Ascending {
                position = position.max((first.0, first.1.saturating_sub(1)));
            }
            time_bound = first.0;
            first_ended = Some(first);
        }
        let rows = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
        let bounds = [queue_id, position.0, position.1, time_bound, rows];
        let mut listed = Vec::new();
        for listing in listings {
            let sql = listing.sql(&self.statements.prefix, order, payloads);
            listed.extend(self.all(&sql, bounds, |row| {
                let view = match state {
                    JobState::Dead => row::dead(row, queue)?,
                    JobState::Ended => row::ended(row, queue)?,
                    _ => row::live(row, queue, self.now)?,
                };
                Ok((row::position(row)?, view))
            })?);
        }
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

    pub(crate) fn forecast(self, queue: &QueueName, edges: &[Timestamp]) -> StoreResult<Vec<u64>> {
        let edges: Vec<i64> = edges.iter().map(|edge| edge.as_millis()).collect();
        let Some(queue_id) = self.find_queue(queue)? else {
            return Ok(vec![0; edges.len().saturating_sub(1)]);
        };
        let expired = self.expired_dues()?.remove(&queue_id).unwrap_or_default();
        edges
            .windows(2)
            .map(|pair| self.count_waiting(queue_id, &expired, pair[0]..pair[1]))
            .collect()
    }

    /// Finds a live, dead or ended job by id, or a live one by key.
    pub(crate) fn get(self, job: &JobRef) -> StoreResult<Option<JobView>> {
        let JobRef { queue, target, .. } = job;
        let Some(queue_id) = self.find_queue(queue)? else {
            return Ok(None);
        };
        let id = match target {
            Target::Id(id) => id.to_bytes(),
            Target::Key(key) => {
                let key = params![queue_id, key.as_str()];
                let seq = self.find(&self.statements.job_by_key, key, |row| row.get(0))?;
                return seq.map(|seq| self.view_live(seq, queue)).transpose();
            }
        };
        let live: Option<(i64, i64)> =
            self.find(&self.statements.job_by_id, [id], |row| Ok((row.get(0)?, row.get(3)?)))?;
        if let Some((seq, _)) = live.filter(|(_, job_queue)| *job_queue == queue_id) {
            return self.view_live(seq, queue).map(Some);
        }
        let place = params![id, queue_id];
        let dead = self.find(&self.statements.view_dead, place, |row| row::dead(row, queue))?;
        if dead.is_some() {
            return Ok(dead);
        }
        let ended = self.find(&self.statements.view_ended, place, |row| {
            Ok((row::position(row)?, row::ended(row, queue)?))
        })?;
        let Some((position, view)) = ended else { return Ok(None) };
        Ok(self.is_in_history(queue, queue_id, position)?.then_some(view))
    }

    fn view_live(self, seq: i64, queue: &QueueName) -> StoreResult<JobView> {
        let params = [seq, self.now.as_millis()];
        self.one(&self.statements.view_job, params, |row| row::live(row, queue, self.now))
    }

    pub(crate) fn find_queue(self, name: &QueueName) -> StoreResult<Option<i64>> {
        self.find(&self.statements.find_queue, [name.as_str()], |row| row.get(0))
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
