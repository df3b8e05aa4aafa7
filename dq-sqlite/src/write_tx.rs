//! A write transaction: its time, its counters, and the changes that it buffers to write them once
//! at its end instead of once per job.

use std::collections::{HashMap, HashSet};

use dq_core::{HistoryLimits, QueueName, Timestamp, Totals};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use crate::due_index::NextDue;
use crate::ended_jobs::EndedJobs;
use crate::error::StoreResult;
use crate::reader::ReadTx;
use crate::row;
use crate::schema;
use crate::shared::StoreShared;
use crate::statements::Statements;

/// Cache of the ids (column `q`) of queues. Queues are never deleted, so an entry stays valid; only
/// a rollback can make it stale.
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

    fn insert(&mut self, name: &QueueName, queue_id: i64) {
        self.by_name.insert(name.clone(), queue_id);
        self.by_id.insert(queue_id, name.clone());
    }
}

/// Changes that are buffered until the transaction ends.
#[derive(Debug)]
struct Buffered {
    /// The `seq` of the last job.
    seq: i64,
    /// The last token.
    token: i64,
    /// The time of the latest grant or renewal of a lease.
    granted: i64,
    counters_changed: bool,
    /// By queue id: counts to add to the totals of the queue.
    totals: HashMap<i64, Totals>,
    /// By queue id: the earliest due time of the jobs that this transaction added to the `due`
    /// table.
    earliest_added: HashMap<i64, Timestamp>,
    /// Queues whose first waiting job may be another one, by id.
    changed: HashSet<i64>,
    ended: EndedJobs,
}

/// A lease that has ended.
#[derive(Debug)]
pub(crate) struct EndedLease {
    pub(crate) worker: String,
    /// When it was granted.
    pub(crate) since: i64,
}

/// A queue whose first waiting job has changed, and when that job is due.
pub(crate) type QueueWakeup = (QueueName, Timestamp);

/// What others are to know of a transaction after its commit.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// For listeners.
    pub(crate) wakeups: Vec<QueueWakeup>,
    pub(crate) next_due: Vec<NextDue>,
}

/// An open write transaction on `conn`. It begins by returning lapsed leases to their queues, unless
/// this version of the library may not write the tables any more ([`Self::check_writer`]): then it is
/// only for [ending and renewing](crate::task::Access::HeldLeases) leases that are held.
#[derive(Debug)]
pub(crate) struct WriteTx<'c> {
    conn: &'c Connection,
    pub(crate) statements: &'c Statements,
    pub(crate) history: &'c HistoryLimits,
    queue_ids: &'c mut QueueIds,
    buffered: Buffered,
    /// The oldest version of the tables whose programs may write them.
    min_writer: i64,
    /// The time of the whole transaction, read after the write lock was taken; by `schedule_in`, at
    /// its call.
    pub(crate) now: Timestamp,
}

impl<'c> WriteTx<'c> {
    pub(crate) fn begin(
        conn: &'c Connection,
        shared: &'c StoreShared,
        queue_ids: &'c mut QueueIds,
        now: Timestamp,
    ) -> StoreResult<Self> {
        let StoreShared { statements, history, .. } = shared;
        let (min_writer, seq, token, granted) = conn
            .prepare_cached(&statements.counters)?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
        let buffered = Buffered {
            seq,
            token,
            granted,
            counters_changed: false,
            totals: HashMap::new(),
            earliest_added: HashMap::new(),
            changed: HashSet::new(),
            ended: EndedJobs::default(),
        };
        let mut tx = Self { conn, statements, history, queue_ids, buffered, min_writer, now };
        if tx.check_writer().is_ok() {
            tx.shorten_leases()?;
            tx.return_lapsed()?;
        }
        Ok(tx)
    }

    /// `Incompatible` if this version of the library may not write the tables: a newer one may have
    /// migrated them since the file was opened.
    pub(crate) fn check_writer(&self) -> StoreResult<()> {
        schema::check_writer(self.min_writer)
    }

    /// Writes the buffered changes.
    pub(crate) fn finish(self) -> StoreResult<Changes> {
        if self.buffered.counters_changed {
            let Buffered { seq, token, granted, .. } = self.buffered;
            self.prepare(&self.statements.save_counters)?.execute([seq, token, granted])?;
        }
        for (queue_id, delta) in &self.buffered.totals {
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
                .execute(params![queue_id, created, done, skipped, cancelled, replaced, removed])?;
        }
        self.buffered.ended.trim(self.conn, self.statements, self.now)?;
        self.changes()
    }

    /// A listener is woken if the first waiting job may be new: if it is not due before the earliest job
    /// that this transaction added. (If it is due later, that job was removed again by the same
    /// transaction.)
    fn changes(self) -> StoreResult<Changes> {
        let mut changes = Changes::default();
        for queue_id in &self.buffered.changed {
            let first = self
                .prepare(&self.statements.first_waiting)?
                .query_row([queue_id], |row| row.get(0))
                .optional()?
                .map(Timestamp::from_millis);
            changes.next_due.push((*queue_id, first));
            let added = self.buffered.earliest_added.get(queue_id);
            if let (Some(due), Some(added)) = (first, added)
                && due >= *added
                && let Some(name) =
                    queue_name(self.conn, self.statements, self.queue_ids, *queue_id)?
            {
                changes.wakeups.push((name, due));
            }
        }
        Ok(changes)
    }

    /// Records that the first waiting job of a queue may be another one, or the queue paused or not.
    pub(crate) fn mark_changed(&mut self, queue_id: i64) {
        self.buffered.changed.insert(queue_id);
    }

    pub(crate) fn prepare(&self, sql: &str) -> rusqlite::Result<CachedStatement<'c>> {
        self.conn.prepare_cached(sql)
    }

    /// The queries of read transactions, in this one.
    pub(crate) const fn reading(&self) -> ReadTx<'_> {
        ReadTx {
            conn: self.conn,
            statements: self.statements,
            history: self.history,
            now: self.now,
        }
    }

    /// Counts that are added to the totals of a queue when the transaction ends.
    pub(crate) fn totals(&mut self, queue_id: i64) -> &mut Totals {
        self.buffered.totals.entry(queue_id).or_default()
    }

    /// Counts of the ended jobs and pins that this transaction adds.
    pub(crate) fn ended(&mut self) -> &mut EndedJobs {
        &mut self.buffered.ended
    }

    /// The `seq` of the next job; [`Self::advance_seq`] marks it as used.
    pub(crate) fn next_seq(&self) -> i64 {
        self.buffered.seq + 1
    }

    pub(crate) fn advance_seq(&mut self) {
        self.buffered.seq += 1;
        self.buffered.counters_changed = true;
    }

    /// A token larger than every earlier one of this store: one more than the last, or the
    /// microseconds since 1970 if that is more. So tokens also grow if the file was restored from a
    /// copy, whose counter is behind.
    pub(crate) fn next_token(&mut self) -> i64 {
        let micros = self.now.as_millis().saturating_mul(1_000);
        self.buffered.token = micros.max(self.buffered.token.saturating_add(1));
        self.buffered.counters_changed = true;
        self.buffered.token
    }

    /// The time at which this transaction grants or renews leases, which each lease stores.
    pub(crate) fn grant(&mut self) -> i64 {
        let now = self.now.as_millis();
        // Later only in a process that is too old to shorten leases: a newer one must still see that
        // the clock was set back.
        self.buffered.granted = self.buffered.granted.max(now);
        self.buffered.counters_changed = true;
        now
    }

    /// The id of a queue; `None` if the store has no queue of this name.
    pub(crate) fn find_queue(&mut self, name: &QueueName) -> StoreResult<Option<i64>> {
        if let Some(queue_id) = self.queue_ids.by_name.get(name) {
            return Ok(Some(*queue_id));
        }
        let queue_id = self
            .prepare(&self.statements.find_queue)?
            .query_row([name.as_str()], |row| row.get(0))
            .optional()?;
        if let Some(queue_id) = queue_id {
            self.queue_ids.insert(name, queue_id);
        }
        Ok(queue_id)
    }

    /// The id of a queue, which is created if it does not exist.
    pub(crate) fn find_or_add_queue(&mut self, name: &QueueName) -> StoreResult<i64> {
        if let Some(queue_id) = self.find_queue(name)? {
            return Ok(queue_id);
        }
        let queue_id = self
            .prepare(&self.statements.add_queue)?
            .query_row([name.as_str()], |row| row.get(0))?;
        self.queue_ids.insert(name, queue_id);
        Ok(queue_id)
    }

    /// Inserts a job into the `due` table.
    pub(crate) fn add_due(&mut self, queue_id: i64, at: Timestamp, seq: i64) -> StoreResult<()> {
        self.prepare(&self.statements.add_due)?.execute([queue_id, at.as_millis(), seq])?;
        self.mark_changed(queue_id);
        let earliest = self.buffered.earliest_added.entry(queue_id).or_insert(at);
        *earliest = at.min(*earliest);
        Ok(())
    }

    /// Removes a job from the `due` table; `false` if it is leased instead.
    pub(crate) fn remove_due(&mut self, queue_id: i64, at: i64, seq: i64) -> StoreResult<bool> {
        self.mark_changed(queue_id);
        Ok(self.prepare(&self.statements.remove_due)?.execute([queue_id, at, seq])? == 1)
    }

    /// When the first waiting job of a queue is due.
    pub(crate) fn earliest_due(&self, queue_id: i64) -> StoreResult<Option<Timestamp>> {
        let at = self
            .prepare(&self.statements.earliest_due)?
            .query_row([queue_id], |row| row.get(0))
            .optional()?;
        Ok(at.map(Timestamp::from_millis))
    }

    /// Lets leases that were granted in the future begin now. There are some only if the clock was
    /// set back: without this, the job of a crashed process would be held for as long.
    fn shorten_leases(&mut self) -> StoreResult<()> {
        let now = self.now.as_millis();
        if self.buffered.granted > now {
            let shortened = self.prepare(&self.statements.shorten_leases)?.execute([now])?;
            tracing::warn!(
                by_ms = self.buffered.granted - now,
                leases = shortened,
                "the clock was set back: leases now last from its new time"
            );
            self.buffered.granted = now;
            self.buffered.counters_changed = true;
        }
        Ok(())
    }

    /// Removes lapsed leases and returns their jobs to their queues, with their due time unchanged.
    /// Counts a loss for each.
    fn return_lapsed(&mut self) -> StoreResult<()> {
        let lapsed: Vec<(i64, i64, EndedLease)> = self
            .prepare(&self.statements.lapsed_leases)?
            .query_map([self.now.as_millis()], |row| {
                let lease = EndedLease { worker: row.get(2)?, since: row.get(3)? };
                Ok((row.get(0)?, row.get(1)?, lease))
            })?
            .collect::<rusqlite::Result<_>>()?;
        for (seq, queue_id, lease) in lapsed {
            self.prepare(&self.statements.remove_lease)?.execute([seq])?;
            self.release_job(queue_id, seq, 1, &lease)?;
        }
        Ok(())
    }

    /// Returns a job to its queue after its lease was removed, with its due time unchanged. Adds
    /// `losses` to the leases that lapsed in succession. Counts the delivery: a claim does not,
    /// since it does not write the row of the job, so readers of a leased job add one.
    pub(crate) fn release_job(
        &mut self,
        queue_id: i64,
        seq: i64,
        losses: i64,
        lease: &EndedLease,
    ) -> StoreResult<()> {
        let due = self
            .prepare(&self.statements.release_job)?
            .query_row([seq, losses], |row| row.get(0))
            .optional()?;
        match due.map(Timestamp::from_millis) {
            Some(due) => {
                self.note_run(seq, lease, None)?;
                self.add_due(queue_id, due, seq)?;
            }
            // The lease is removed already, and there is no job to return.
            None => tracing::warn!(
                seq,
                queue_id,
                "dropped a lease whose job another program has deleted"
            ),
        }
        Ok(())
    }

    /// Notes the last lease of a job that stays, and the error of its run if it failed.
    pub(crate) fn note_run(
        &self,
        seq: i64,
        lease: &EndedLease,
        error: Option<&str>,
    ) -> StoreResult<()> {
        let EndedLease { worker, since } = lease;
        self.prepare(&self.statements.note_run)?.execute(params![seq, since, worker, error])?;
        Ok(())
    }

    /// Clears the noted error of a job.
    pub(crate) fn clear_error(&self, seq: i64) -> StoreResult<()> {
        self.prepare(&self.statements.clear_error)?.execute([seq])?;
        Ok(())
    }
}

/// The name of a queue. `None` if the row is missing or its name is invalid; neither has listeners.
fn queue_name(
    conn: &Connection,
    statements: &Statements,
    queue_ids: &mut QueueIds,
    queue_id: i64,
) -> StoreResult<Option<QueueName>> {
    if let Some(name) = queue_ids.by_id.get(&queue_id) {
        return Ok(Some(name.clone()));
    }
    let mut statement = conn.prepare_cached(&statements.name_queue)?;
    let name = statement.query_row([queue_id], |row| Ok(row::queue_name(row.get_ref(0)?).ok()));
    let name = name.optional()?.flatten();
    if let Some(name) = &name {
        queue_ids.insert(name, queue_id);
    }
    Ok(name)
}
