//! Looking: stats, listings, single jobs.

use std::collections::HashMap;

use dq_core::{
    Cursor, JobRef, JobState, JobView, Page, QueueName, QueueStats, Target, Timestamp, Totals,
};
use rusqlite::{OptionalExtension, Row, params};

use crate::error::{Failure, Outcome};
use crate::reader::View;
use crate::row;

impl View<'_> {
    /// Counts of these queues, or of all.
    pub(crate) fn stats(self, queues: &[QueueName]) -> Outcome<Vec<QueueStats>> {
        let running = self.running()?;
        if !queues.is_empty() {
            return queues.iter().map(|queue| self.stats_of(queue, &running)).collect();
        }
        self.names()?.iter().map(|queue| self.stats_of(queue, &running)).collect()
    }

    fn names(self) -> Outcome<Vec<QueueName>> {
        let mut statement = self.conn.prepare_cached(&self.sql.queue_names)?;
        let names = statement.query_map([], |row| Ok(row::queue_name(row.get_ref(0)?).ok()))?;
        // A name that is none was put there by hand and cannot be asked for; `check` reports it.
        Ok(names.filter_map(rusqlite::Result::transpose).collect::<rusqlite::Result<_>>()?)
    }

    /// Leases by queue.
    fn running(self) -> Outcome<HashMap<i64, u64>> {
        let mut statement = self.conn.prepare_cached(&self.sql.count_leases)?;
        let counts = statement.query_map([], |row| Ok((row.get(0)?, unsigned(row, 1)?)))?;
        Ok(counts.collect::<rusqlite::Result<_>>()?)
    }

    fn stats_of(self, name: &QueueName, running: &HashMap<i64, u64>) -> Outcome<QueueStats> {
        let row = self
            .conn
            .prepare_cached(&self.sql.queue_row)?
            .query_row([name.as_str()], |row| Ok((row.get(0)?, row.get(1)?, totals(row)?)))
            .optional()?;
        let mut stats = QueueStats::empty(name.clone());
        let Some((q, paused, totals)) = row else {
            stats.totals = Some(Totals::default());
            return Ok(stats);
        };
        let now = self.now.as_millis();
        stats.paused = paused;
        stats.totals = Some(totals);
        stats.ready = self.count(&self.sql.count_due, &[q, now])?;
        stats.scheduled = self.count(&self.sql.count_later, &[q, now])?;
        stats.running = running.get(&q).copied().unwrap_or(0);
        stats.dead = self.count(&self.sql.count_dead, &[q])?;
        stats.next_due = self
            .conn
            .prepare_cached(&self.sql.earliest_due)?
            .query_row([q], |row| row.get(0))
            .optional()?
            .map(Timestamp::from_millis);
        Ok(stats)
    }

    fn count(self, sql: &str, params: &[i64]) -> Outcome<u64> {
        let params = rusqlite::params_from_iter(params);
        Ok(self.conn.prepare_cached(sql)?.query_row(params, |row| unsigned(row, 0))?)
    }

    /// One page of a listing.
    pub(crate) fn browse(
        self,
        queue: &QueueName,
        state: JobState,
        after: Option<Cursor>,
        limit: usize,
    ) -> Outcome<Page> {
        let sql = match state {
            JobState::Scheduled => &self.sql.browse_scheduled,
            JobState::Ready => &self.sql.browse_ready,
            JobState::Running => &self.sql.browse_running,
            JobState::Dead => &self.sql.browse_dead,
            state => return Err(Failure::unknown(&state)),
        };
        let Some(q) = self.queue(queue)? else {
            return Ok(Page { jobs: Vec::new(), next: None });
        };
        let (at, seq) = after.map_or((i64::MIN, 0), |cursor| {
            (cursor.at.as_millis(), i64::try_from(cursor.seq).unwrap_or(i64::MAX))
        });
        // The dead are listed whenever they died, so that a clock set back hides none.
        let now = if state == JobState::Dead { i64::MAX } else { self.now.as_millis() };
        // One more than asked for tells whether there is another page.
        let rows = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
        let mut listed: Vec<(Cursor, JobView)> = self
            .conn
            .prepare_cached(sql)?
            .query_map([q, at, seq, now, rows], |row| {
                let (seq, at) = row::place(row)?;
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

    /// One job, live or dead.
    pub(crate) fn get(self, job: &JobRef) -> Outcome<Option<JobView>> {
        let Some(q) = self.queue(&job.queue)? else {
            return Ok(None);
        };
        let live: Option<i64> = match &job.target {
            Target::Id(id) => self
                .conn
                .prepare_cached(&self.sql.job_by_id)?
                .query_row([id.to_bytes()], |row| Ok((row.get(0)?, row.get(3)?)))
                .optional()?
                .and_then(|(seq, of): (i64, i64)| (of == q).then_some(seq)),
            Target::Key(key) => self
                .conn
                .prepare_cached(&self.sql.job_by_key)?
                .query_row(params![q, key.as_str()], |row| row.get(0))
                .optional()?,
        };
        match (live, &job.target) {
            (Some(seq), _) => self.live(seq, &job.queue).map(Some),
            (None, Target::Id(id)) => Ok(self
                .conn
                .prepare_cached(&self.sql.look_at_dead)?
                .query_row(params![id.to_bytes(), q], |row| row::dead(row, &job.queue))
                .optional()?),
            (None, Target::Key(_)) => Ok(None),
        }
    }

    fn live(self, seq: i64, queue: &QueueName) -> Outcome<JobView> {
        let until: Option<i64> = self
            .conn
            .prepare_cached(&self.sql.lease_until)?
            .query_row([seq], |row| row.get(0))
            .optional()?;
        Ok(self.conn.prepare_cached(&self.sql.look_at_job)?.query_row([seq], |row| {
            Ok(match until {
                Some(until) => row::running(row, queue, until),
                None => row::waiting(row, queue, self.now),
            })
        })?)
    }

    fn queue(self, name: &QueueName) -> Outcome<Option<i64>> {
        Ok(self
            .conn
            .prepare_cached(&self.sql.find_queue)?
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

/// Counts are never negative, but SQLite has no unsigned numbers.
fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get(column).map(i64::unsigned_abs)
}
