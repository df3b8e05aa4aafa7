//! A write transaction: its time, its counters, and values that are written once at its end instead
//! of once per job.

use std::collections::HashMap;

use dq_core::{QueueName, Timestamp, Totals};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use crate::error::StoreResult;
use crate::row;
use crate::schema;
use crate::statements::Statements;

/// Cache of the ids (column `q`) of queues. Queues are never deleted, so an entry stays valid; only a
/// rollback can make it stale.
#[derive(Debug, Default)]
pub(crate) struct QueueIds {
    by_name: HashMap<QueueName, i64>,
    by_id: HashMap<i64, QueueName>,
}

impl QueueIds {
    pub(crate) fn clear(&mut self) {
        self.by_name.clear();
        self.by_id.clear();
    }

    fn insert(&mut self, name: &QueueName, q: i64) {
        self.by_name.insert(name.clone(), q);
        self.by_id.insert(q, name.clone());
    }
}

/// Changes that are buffered until the transaction ends.
#[derive(Debug)]
struct Buffered {
    seq: i64,
    token: i64,
    counters_changed: bool,
    totals: HashMap<i64, Totals>,
    /// The earliest due time that this transaction added to each queue.
    earliest_added: HashMap<i64, Timestamp>,
}

/// A queue whose first job has changed, and when that job is due.
pub(crate) type QueueWakeup = (QueueName, Timestamp);

/// An open write transaction on `conn`. It begins by returning lapsed leases to their queues.
#[derive(Debug)]
pub(crate) struct WriteTx<'c> {
    conn: &'c Connection,
    pub(crate) statements: &'c Statements,
    queue_ids: &'c mut QueueIds,
    buffered: Buffered,
    /// The time of the whole transaction, read after the write lock was taken.
    pub(crate) now: Timestamp,
}

impl<'c> WriteTx<'c> {
    pub(crate) fn begin(
        conn: &'c Connection,
        statements: &'c Statements,
        queue_ids: &'c mut QueueIds,
        now: Timestamp,
    ) -> StoreResult<Self> {
        let (format, seq, token) = conn
            .prepare_cached(&statements.meta)?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        // Another process may have migrated the tables since the file was opened.
        schema::check_format(format)?;
        let buffered = Buffered {
            seq,
            token,
            counters_changed: false,
            totals: HashMap::new(),
            earliest_added: HashMap::new(),
        };
        let mut tx = Self { conn, statements, queue_ids, buffered, now };
        tx.return_lapsed()?;
        Ok(tx)
    }

    /// Writes the buffered changes. The wakeups are to be sent after the commit.
    pub(crate) fn finish(self) -> StoreResult<Vec<QueueWakeup>> {
        if self.buffered.counters_changed {
            self.prepare(&self.statements.save_counters)?
                .execute(params![self.buffered.seq, self.buffered.token])?;
        }
        for (q, delta) in &self.buffered.totals {
            let counts = [
                delta.created,
                delta.done,
                delta.skipped,
                delta.cancelled,
                delta.replaced,
                delta.removed,
            ];
            let [created, done, skipped, cancelled, replaced, removed] =
                counts.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
            self.prepare(&self.statements.add_totals)?
                .execute(params![q, created, done, skipped, cancelled, replaced, removed])?;
        }
        self.wakeups()
    }

    /// Queues whose first job may be one that this transaction added. If the first job is due later
    /// than the earliest one added, the latter has been removed again, and the first job may still be
    /// new.
    fn wakeups(self) -> StoreResult<Vec<QueueWakeup>> {
        let mut wakeups = Vec::new();
        for (q, added) in &self.buffered.earliest_added {
            if let Some(due) = self.earliest_due(*q)?
                && due >= *added
                && let Some(name) = queue_name(self.conn, self.statements, self.queue_ids, *q)?
            {
                wakeups.push((name, due));
            }
        }
        Ok(wakeups)
    }

    pub(crate) fn prepare(&self, sql: &str) -> rusqlite::Result<CachedStatement<'c>> {
        self.conn.prepare_cached(sql)
    }

    pub(crate) fn totals(&mut self, q: i64) -> &mut Totals {
        self.buffered.totals.entry(q).or_default()
    }

    /// The `seq` of the next job; [`Self::advance_seq`] marks it as used.
    pub(crate) fn next_seq(&self) -> i64 {
        self.buffered.seq + 1
    }

    pub(crate) fn advance_seq(&mut self) {
        self.buffered.seq += 1;
        self.buffered.counters_changed = true;
    }

    /// The largest `seq` that a job has had.
    pub(crate) fn last_seq(&self) -> i64 {
        self.buffered.seq
    }

    /// A token larger than every earlier one of this store.
    pub(crate) fn next_token(&mut self) -> i64 {
        self.buffered.token += 1;
        self.buffered.counters_changed = true;
        self.buffered.token
    }

    /// The id of a queue, if the store has one of this name.
    pub(crate) fn find_queue(&mut self, name: &QueueName) -> StoreResult<Option<i64>> {
        if let Some(q) = self.queue_ids.by_name.get(name) {
            return Ok(Some(*q));
        }
        let q = self
            .prepare(&self.statements.find_queue)?
            .query_row([name.as_str()], |row| row.get(0))
            .optional()?;
        if let Some(q) = q {
            self.queue_ids.insert(name, q);
        }
        Ok(q)
    }

    /// The id of a queue, which is created if it does not exist.
    pub(crate) fn find_or_add_queue(&mut self, name: &QueueName) -> StoreResult<i64> {
        if let Some(q) = self.find_queue(name)? {
            return Ok(q);
        }
        let q = self
            .prepare(&self.statements.add_queue)?
            .query_row([name.as_str()], |row| row.get(0))?;
        self.queue_ids.insert(name, q);
        Ok(q)
    }

    /// Inserts a job into the `due` table.
    pub(crate) fn add_due(&mut self, q: i64, at: Timestamp, seq: i64) -> StoreResult<()> {
        self.prepare(&self.statements.add_due)?.execute([q, at.as_millis(), seq])?;
        let earliest = self.buffered.earliest_added.entry(q).or_insert(at);
        *earliest = at.min(*earliest);
        Ok(())
    }

    /// Removes a job from the `due` table; `false` if it is leased instead.
    pub(crate) fn remove_due(&self, q: i64, at: i64, seq: i64) -> StoreResult<bool> {
        Ok(self.prepare(&self.statements.remove_due)?.execute([q, at, seq])? == 1)
    }

    /// When the first waiting job of a queue is due.
    pub(crate) fn earliest_due(&self, q: i64) -> StoreResult<Option<Timestamp>> {
        let at = self
            .prepare(&self.statements.earliest_due)?
            .query_row([q], |row| row.get(0))
            .optional()?;
        Ok(at.map(Timestamp::from_millis))
    }

    /// Returns jobs whose lease has lapsed to their queues, with their due time unchanged.
    fn return_lapsed(&mut self) -> StoreResult<()> {
        let lapsed: Vec<(i64, i64)> = self
            .prepare(&self.statements.lapsed_leases)?
            .query_map([self.now.as_millis()], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        for (seq, q) in lapsed {
            self.prepare(&self.statements.remove_lease)?.execute([seq])?;
            self.release_job(q, seq, 1)?;
        }
        Ok(())
    }

    /// Returns a job whose lease was removed to its queue, with its due time unchanged. Counts the
    /// delivery, and adds `losses`.
    pub(crate) fn release_job(&mut self, q: i64, seq: i64, losses: i64) -> StoreResult<()> {
        let due = self
            .prepare(&self.statements.release_job)?
            .query_row([seq, losses], |row| row.get(0))
            .map(Timestamp::from_millis)?;
        self.add_due(q, due, seq)
    }
}

/// The name of a queue. `None` if the row is missing or its name is invalid; neither has listeners.
fn queue_name(
    conn: &Connection,
    statements: &Statements,
    queue_ids: &mut QueueIds,
    q: i64,
) -> StoreResult<Option<QueueName>> {
    if let Some(name) = queue_ids.by_id.get(&q) {
        return Ok(Some(name.clone()));
    }
    let mut statement = conn.prepare_cached(&statements.name_queue)?;
    let name = statement.query_row([q], |row| Ok(row::queue_name(row.get_ref(0)?).ok()));
    let name = name.optional()?.flatten();
    if let Some(name) = &name {
        queue_ids.insert(name, q);
    }
    Ok(name)
}
