//! Keeps the `ended` and `pin` tables within their limits. A transaction deletes about as many rows
//! as it adds, so it stays short after a limit was lowered; readers hide the rest.

use std::collections::HashMap;

use dq_core::{HistoryLimit, QueueName};

use crate::error::StoreResult;
use crate::reader::ReadTx;
use crate::row::Position;

/// Beyond two for each added row.
const EXTRA_DELETIONS: i64 = 64;

#[derive(Debug, Default)]
pub(crate) struct EndedJobs {
    queues: HashMap<i64, AddedRows>,
    pins: i64,
}

#[derive(Debug, Default)]
struct AddedRows {
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

    pub(crate) fn remove(&mut self, queue_id: i64) {
        self.queues.entry(queue_id).or_default().removed += 1;
    }

    pub(crate) fn add_pin(&mut self) {
        self.pins += 1;
    }

    pub(crate) fn trim(&self, tx: ReadTx<'_>) -> StoreResult<()> {
        for (queue_id, AddedRows { limit, added, removed }) in &self.queues {
            let mut count = added - removed;
            if let Some(limit) = limit {
                let stored = tx.count_ended(*queue_id)? + count;
                count -= trim_queue(tx, *queue_id, *limit, stored, added * 2 + EXTRA_DELETIONS)?;
            }
            if count != 0 {
                let mut add = tx.conn.prepare_cached(&tx.statements.add_ended_count)?;
                add.execute([*queue_id, count])?;
            }
        }
        if self.pins > 0 {
            let max = self.pins * 2 + EXTRA_DELETIONS;
            let mut remove = tx.conn.prepare_cached(&tx.statements.remove_pins)?;
            remove.execute([tx.now.as_millis(), max])?;
        }
        Ok(())
    }
}

/// Deletes a queue's oldest rows beyond the limit, at most `max`; returns how many.
fn trim_queue(
    tx: ReadTx<'_>,
    queue_id: i64,
    limit: HistoryLimit,
    stored: i64,
    max: i64,
) -> StoreResult<i64> {
    if stored <= 0 {
        return Ok(0);
    }
    let bounds = [queue_id, tx.oldest_within(limit), max];
    let outdated = tx.all(&tx.statements.outdated_ended, bounds, |_| Ok(()))?.len() as i64;
    let excess = outdated.max(stored - i64::from(limit.max)).min(max);
    if excess <= 0 {
        return Ok(0);
    }
    let Some((at, seq)) = tx.ended_at(queue_id, excess - 1)? else {
        return Ok(0);
    };
    let mut remove = tx.conn.prepare_cached(&tx.statements.remove_ended)?;
    Ok(remove.execute([queue_id, at, seq])? as i64)
}

impl ReadTx<'_> {
    /// The queue's ended jobs from this position on, if any, are within the limit. `None` if the
    /// limit allows none. Rows that this transaction has just added do not count yet.
    pub(crate) fn first_in_history(
        self,
        queue: &QueueName,
        queue_id: i64,
    ) -> StoreResult<Option<Position>> {
        let limit = self.history.of(queue);
        if limit.max == 0 {
            return Ok(None);
        }
        let first = (self.oldest_within(limit), i64::MIN);
        let excess = self.count_ended(queue_id)? - i64::from(limit.max);
        if excess <= 0 {
            return Ok(Some(first));
        }
        Ok(self.ended_at(queue_id, excess)?.map(|at_limit| at_limit.max(first)))
    }

    pub(crate) fn is_in_history(
        self,
        queue: &QueueName,
        queue_id: i64,
        position: Position,
    ) -> StoreResult<bool> {
        let first = self.first_in_history(queue, queue_id)?;
        Ok(first.is_some_and(|first| position >= first))
    }

    fn count_ended(self, queue_id: i64) -> StoreResult<i64> {
        let count = self.find(&self.statements.count_ended, [queue_id], |row| row.get(0))?;
        Ok(count.unwrap_or(0))
    }

    fn oldest_within(self, limit: HistoryLimit) -> i64 {
        (self.now - limit.age).as_millis()
    }

    fn ended_at(self, queue_id: i64, offset: i64) -> StoreResult<Option<Position>> {
        self.find(&self.statements.ended_at_offset, [queue_id, offset], |row| row.try_into())
    }
}
