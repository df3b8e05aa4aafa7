//! A write transaction: its time, its counters, and changes buffered until its end, to write them
//! once and not once per job.

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

/// Queues are never deleted, so only a rollback can make an entry stale.
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

#[derive(Debug)]
struct Buffered {
    seq: i64,
    token: i64,
    /// Time of the latest grant or renewal.
    granted: i64,
    counters_changed: bool,
    /// By queue id.
    totals: HashMap<i64, Totals>,
    /// By queue id: the earliest due time that this transaction added.
    earliest_added: HashMap<i64, Timestamp>,
    /// Their first waiting job may have changed.
    changed: HashSet<i64>,
    ended: EndedJobs,
}

#[derive(Debug)]
pub(crate) struct EndedLease {
    pub(crate) worker: String,
    pub(crate) since: i64,
}

/// A queue and its new first due time.
pub(crate) type QueueWakeup = (QueueName, Timestamp);

#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) wakeups: Vec<QueueWakeup>,
    pub(crate) next_due: Vec<NextDue>,
}

/// An open write transaction. It first returns the jobs of expired leases to their queues. If this
/// library version may no longer write the tables ([`Self::check_writer`]), it can only [end and
/// renew](crate::task::Access::HeldLeases) held leases.
#[derive(Debug)]
pub(crate) struct WriteTx<'c> {
    conn: &'c Connection,
    pub(crate) statements: &'c Statements,
    pub(crate) history: &'c HistoryLimits,
    queue_ids: &'c mut QueueIds,
    buffered: Buffered,
    /// The oldest table version whose programs may write.
    min_writer: i64,
    /// Read after the write lock was taken; for `schedule_in`, at its call.
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

    /// `Incompatible` if this library version may not write the tables: a newer one may have
    /// migrated them.
    pub(crate) fn check_writer(&self) -> StoreResult<()> {
        schema::check_writer(self.min_writer)
    }

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

    /// Wakes listeners if the first waiting job may be new: due no later than the earliest job
    /// added. If it is due later, this transaction removed the added job again.
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

    /// The queue's first waiting job may have changed, or the queue was paused or resumed.
    pub(crate) fn mark_changed(&mut self, queue_id: i64) {
        self.buffered.changed.insert(queue_id);
    }

    pub(crate) fn prepare(&self, sql: &str) -> rusqlite::Result<CachedStatement<'c>> {
        self.conn.prepare_cached(sql)
    }

    pub(crate) const fn reading(&self) -> ReadTx<'_> {
        ReadTx {
            conn: self.conn,
            statements: self.statements,
            history: self.history,
            now: self.now,
        }
    }

    pub(crate) fn totals(&mut self, queue_id: i64) -> &mut Totals {
        self.buffered.totals.entry(queue_id).or_default()
    }

    pub(crate) fn ended(&mut self) -> &mut EndedJobs {
        &mut self.buffered.ended
    }

    /// [`Self::advance_seq`] marks it as used.
    pub(crate) fn next_seq(&self) -> i64 {
        self.buffered.seq + 1
    }

    pub(crate) fn advance_seq(&mut self) {
        self.buffered.seq += 1;
        self.buffered.counters_changed = true;
    }

    /// Returns a token larger than all earlier ones: the last plus one, or the microseconds since
    /// 1970 if that is more. So tokens also grow after restoring a backup, whose counter is behind.
    pub(crate) fn next_token(&mut self) -> i64 {
        let micros = self.now.as_millis().saturating_mul(1_000);
        self.buffered.token = micros.max(self.buffered.token.saturating_add(1));
        self.buffered.counters_changed = true;
        self.buffered.token
    }

    /// Returns the grant time, which each lease stores.
    pub(crate) fn grant(&mut self) -> i64 {
        let now = self.now.as_millis();
        // Later than `now` only in a process too old to shorten leases. A newer process must still
        // see that the clock was set back.
        self.buffered.granted = self.buffered.granted.max(now);
        self.buffered.counters_changed = true;
        now
    }

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

    /// Creates the queue if necessary.
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

    pub(crate) fn add_due(&mut self, queue_id: i64, at: Timestamp, seq: i64) -> StoreResult<()> {
        self.prepare(&self.statements.add_due)?.execute([queue_id, at.as_millis(), seq])?;
        self.mark_changed(queue_id);
        let earliest = self.buffered.earliest_added.entry(queue_id).or_insert(at);
        *earliest = at.min(*earliest);
        Ok(())
    }

    /// Returns `false` if the job is leased instead.
    pub(crate) fn remove_due(&mut self, queue_id: i64, at: i64, seq: i64) -> StoreResult<bool> {
        self.mark_changed(queue_id);
        Ok(self.prepare(&self.statements.remove_due)?.execute([queue_id, at, seq])? == 1)
    }

    pub(crate) fn earliest_due(&self, queue_id: i64) -> StoreResult<Option<Timestamp>> {
        let at = self
            .prepare(&self.statements.earliest_due)?
            .query_row([queue_id], |row| row.get(0))
            .optional()?;
        Ok(at.map(Timestamp::from_millis))
    }

    /// Restarts leases granted in the future, which exist only after the clock was set back.
    /// Otherwise a crashed process holds its job that much longer.
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

    /// The jobs keep their due time and count one more loss.
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

    /// Returns a job whose lease was removed to its queue, with unchanged due time. Counts the
    /// delivery here because a claim does not write the job's row; readers of a leased job add one.
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
            None => tracing::warn!(
                seq,
                queue_id,
                "dropped a lease whose job another program has deleted"
            ),
        }
        Ok(())
    }

    /// For a job that continues; `error` if the run failed.
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

    pub(crate) fn clear_error(&self, seq: i64) -> StoreResult<()> {
        self.prepare(&self.statements.clear_error)?.execute([seq])?;
        Ok(())
    }
}

/// `None` if the row is missing or its name invalid; such a queue has no listeners.
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
