//! Keeps the `ended` and `pin` tables within their limits. A transaction deletes about as many rows
//! as it adds, so it stays short after a limit was lowered; readers hide the rest.

use std::collections::HashMap;

use dq_core::{HistoryLimit, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};

use crate::error::StoreResult;
use crate::statements::Statements;

/// Beyond two for each added row.
const EXTRA_DELETIONS: i64 = 64;

/// End time and `seq`.
pub(crate) type EndedPosition = (i64, i64);

#[derive(Debug, Default)]
pub(crate) struct EndedJobs {
    /// By queue id.
    queues: HashMap<i64, AddedRows>,
    pins: i64,
}

#[derive(Debug, Default)]
struct AddedRows {
    /// `None` if rows were only removed.
    limit: Option<HistoryLimit>,
    added: i64,
    removed: i64,
}

impl EndedJobs {
    pub(crate) fn add(&mut self, queue_id: i64, limit: HistoryLimit) {
        self.set_limit(queue_id, limit);
        self.queues.entry(queue_id).or_default().added += 1;
    }

    pub(crate) fn set_limit(&mut self, queue_id: i64, limit: HistoryLimit) {
        self.queues.entry(queue_id).or_default().limit = Some(limit);
    }

    /// Counts a row removed because its id has ended again.
    pub(crate) fn remove(&mut self, queue_id: i64) {
        self.queues.entry(queue_id).or_default().removed += 1;
    }

    pub(crate) fn add_pin(&mut self) {
        self.pins += 1;
    }

    pub(crate) fn trim(
        &self,
        conn: &Connection,
        statements: &Statements,
        now: Timestamp,
    ) -> StoreResult<()> {
        for (queue_id, AddedRows { limit, added, removed }) in &self.queues {
            let mut count = added - removed;
            if let Some(limit) = limit {
                let before = count_ended(conn, statements, *queue_id)?;
                let max = added * 2 + EXTRA_DELETIONS;
                count -= trim_queue(conn, statements, *queue_id, *limit, before + count, max, now)?;
            }
            if count != 0 {
                conn.prepare_cached(&statements.add_ended_count)?.execute([*queue_id, count])?;
            }
        }
        if self.pins > 0 {
            let max = self.pins * 2 + EXTRA_DELETIONS;
            conn.prepare_cached(&statements.remove_pins)?.execute([now.as_millis(), max])?;
        }
        Ok(())
    }
}

fn count_ended(conn: &Connection, statements: &Statements, queue_id: i64) -> StoreResult<i64> {
    let mut count = conn.prepare_cached(&statements.count_ended)?;
    Ok(count.query_row([queue_id], |row| row.get(0)).optional()?.unwrap_or(0))
}

/// Deletes a queue's oldest rows beyond the limit, at most `max`; returns how many.
fn trim_queue(
    conn: &Connection,
    statements: &Statements,
    queue_id: i64,
    limit: HistoryLimit,
    count: i64,
    max: i64,
    now: Timestamp,
) -> StoreResult<i64> {
    if count <= 0 {
        return Ok(0);
    }
    let oldest = oldest(limit, now);
    let mut outdated = 0;
    let mut statement = conn.prepare_cached(&statements.outdated_ended)?;
    let mut rows = statement.query([queue_id, oldest, max])?;
    while rows.next()?.is_some() {
        outdated += 1;
    }
    let excess = outdated.max(count - i64::from(limit.max)).min(max);
    if excess <= 0 {
        return Ok(0);
    }
    let last: Option<EndedPosition> = conn
        .prepare_cached(&statements.ended_at_offset)?
        .query_row([queue_id, excess - 1], position)
        .optional()?;
    let Some((at, seq)) = last else {
        return Ok(0);
    };
    let deleted = conn.prepare_cached(&statements.remove_ended)?.execute([queue_id, at, seq])?;
    Ok(deleted as i64)
}

/// The queue's rows from this position on, if any, are within the limit. `None` if the limit allows
/// none. Rows that this transaction has just added do not count yet.
pub(crate) fn first_within(
    conn: &Connection,
    statements: &Statements,
    queue_id: i64,
    limit: HistoryLimit,
    now: Timestamp,
) -> StoreResult<Option<EndedPosition>> {
    if limit.max == 0 {
        return Ok(None);
    }
    let first = (oldest(limit, now), i64::MIN);
    let excess = count_ended(conn, statements, queue_id)? - i64::from(limit.max);
    if excess <= 0 {
        return Ok(Some(first));
    }
    let at_limit: Option<EndedPosition> = conn
        .prepare_cached(&statements.ended_at_offset)?
        .query_row([queue_id, excess], position)
        .optional()?;
    Ok(at_limit.map(|at_limit| at_limit.max(first)))
}

fn oldest(limit: HistoryLimit, now: Timestamp) -> i64 {
    (now - limit.age).as_millis()
}

fn position(row: &Row<'_>) -> rusqlite::Result<EndedPosition> {
    Ok((row.get(0)?, row.get(1)?))
}
