//! Inspect: stats, browse and get.

use std::collections::HashMap;

use dq_core::{
    Cursor, JobRef, JobState, JobView, Page, QueueName, QueueStats, Target, Timestamp, Totals,
};
use rusqlite::{OptionalExtension, Row, params};

use crate::error::{StoreError, StoreResult};
use crate::reader::ReadTx;
use crate::row;

impl ReadTx<'_> {
    /// Counts of these queues; of all queues if the list is empty.
    pub(crate) fn stats(self, queues: &[QueueName]) -> StoreResult<Vec<QueueStats>> {
        let running = self.running_by_queue()?;
        if !queues.is_empty() {
            return queues.iter().map(|queue| self.queue_stats(queue, &running)).collect();
        }
        self.queue_names()?.iter().map(|queue| self.queue_stats(queue, &running)).collect()
    }

    fn queue_names(self) -> StoreResult<Vec<QueueName>> {
        let mut statement = self.conn.prepare_cached(&self.statements.queue_names)?;
        let names = statement.query_map([], |row| Ok(row::queue_name(row.get_ref(0)?).ok()))?;
        // Invalid names, which other programs may have stored, are skipped; `check` reports them.
        Ok(names.filter_map(rusqlite::Result::transpose).collect::<rusqlite::Result<_>>()?)
    }

    /// Number of leases by queue id.
    fn running_by_queue(self) -> StoreResult<HashMap<i64, u64>> {
        let mut statement = self.conn.prepare_cached(&self.statements.count_leases)?;
        let counts = statement.query_map([], |row| Ok((row.get(0)?, unsigned(row, 1)?)))?;
        Ok(counts.collect::<rusqlite::Result<_>>()?)
    }

    fn queue_stats(self, name: &QueueName, running: &HashMap<i64, u64>) -> StoreResult<QueueStats> {
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
        stats.ready = self.count(&self.statements.count_due, &[queue_id, now])?;
        stats.scheduled = self.count(&self.statements.count_later, &[queue_id, now])?;
        stats.running = running.get(&queue_id).copied().unwrap_or(0);
        stats.dead = self.count(&self.statements.count_dead, &[queue_id])?;
        stats.next_due = self
            .conn
            .prepare_cached(&self.statements.earliest_due)?
            .query_row([queue_id], |row| row.get(0))
            .optional()?
            .map(Timestamp::from_millis);
        Ok(stats)
    }

    fn count(self, sql: &str, params: &[i64]) -> StoreResult<u64> {
        let params = rusqlite::params_from_iter(params);
        Ok(self.conn.prepare_cached(sql)?.query_row(params, |row| unsigned(row, 0))?)
    }

    /// One page of the jobs of a queue in one state, in the order of a time and `seq`. The time is
    /// the due time of waiting jobs, the lease's end of running ones, and the time of death of dead
    /// ones.
    pub(crate) fn browse(
        self,
        queue: &QueueName,
        state: JobState,
        after: Option<Cursor>,
        limit: usize,
    ) -> StoreResult<Page> {
        let sql = match state {
            JobState::Scheduled => &self.statements.browse_scheduled,
            JobState::Ready => &self.statements.browse_ready,
            JobState::Running => &self.statements.browse_running,
            JobState::Dead => &self.statements.browse_dead,
            state => return Err(StoreError::unsupported(&state)),
        };
        let Some(queue_id) = self.find_queue(queue)? else {
            return Ok(Page { jobs: Vec::new(), next: None });
        };
        let (at, seq) = after.map_or((i64::MIN, 0), |cursor| {
            (cursor.at.as_millis(), i64::try_from(cursor.seq).unwrap_or(i64::MAX))
        });
        // The bound `?4` of the statements: scheduled jobs are due and leases end after it, ready
        // jobs are due at it or before. Of dead jobs it excludes none, even if the clock was set
        // back.
        let time_bound = if state == JobState::Dead { i64::MAX } else { self.now.as_millis() };
        // One row more than the limit shows whether there is another page.
        let rows = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
        let mut listed: Vec<(Cursor, JobView)> = self
            .conn
            .prepare_cached(sql)?
            .query_map([queue_id, at, seq, time_bound, rows], |row| {
                let (seq, at) = row::position(row)?;
                let cursor =
                    Cursor { at: Timestamp::from_millis(at), seq: seq.unsigned_abs().into() };
                let view = match state {
                    JobState::Running => row::running(row, queue, at),
                    JobState::Dead => row::dead(row, queue)?,
                    _ => row::waiting(row, queue, self.now),
                };
                Ok((cursor, view))
            })?
            .collect::<rusqlite::Result<_>>()?;
        let more = listed.len() > limit;
        listed.truncate(limit);
        let next = listed.last().filter(|_| more).map(|(cursor, _)| *cursor);
        Ok(Page { jobs: listed.into_iter().map(|(_, view)| view).collect(), next })
    }

    /// One job: by id live or dead, by key live only.
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
            (None, Target::Id(id)) => Ok(self
                .conn
                .prepare_cached(&self.statements.view_dead)?
                .query_row(params![id.to_bytes(), queue_id], |row| row::dead(row, &job.queue))
                .optional()?),
            (None, Target::Key(_)) => Ok(None),
        }
    }

    /// The view of a live job.
    fn view_live(self, seq: i64, queue: &QueueName) -> StoreResult<JobView> {
        let until: Option<i64> = self
            .conn
            .prepare_cached(&self.statements.lease_until)?
            .query_row([seq], |row| row.get(0))
            .optional()?;
        Ok(self.conn.prepare_cached(&self.statements.view_job)?.query_row([seq], |row| {
            Ok(match until {
                Some(until) => row::running(row, queue, until),
                None => row::waiting(row, queue, self.now),
            })
        })?)
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
    Ok(Totals {
        created: unsigned(row, 2)?,
        done: unsigned(row, 3)?,
        skipped: unsigned(row, 4)?,
        cancelled: unsigned(row, 5)?,
        replaced: unsigned(row, 6)?,
        removed: unsigned(row, 7)?,
    })
}

/// A count: SQLite has no unsigned integers, but counts are never negative.
fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get(column).map(i64::unsigned_abs)
}
