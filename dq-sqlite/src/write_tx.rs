//! A write transaction: its time, its counters, and changes buffered until its end, to write them
//! once and not once per job.

use std::collections::HashMap;
use std::ops::Deref;

use dq_core::{QueueName, Timestamp, Totals};
use rusqlite::{Connection, Params, params};

use crate::claim_plan::earlier;
use crate::due_index::NextDue;
use crate::ended_jobs::EndedJobs;
use crate::error::StoreResult;
use crate::reader::ReadTx;
use crate::row;
use crate::schema;
use crate::shared::StoreShared;

/// Queues are never deleted, so only a rollback can make an entry stale.
pub(crate) type QueueIds = HashMap<QueueName, i64>;

#[derive(Debug, Default)]
struct Buffered {
    seq: i64,
    token: i64,
    /// Time of the latest grant or renewal.
    granted: i64,
    counters_changed: bool,
    /// By queue id.
    totals: HashMap<i64, Totals>,
    /// The queues whose first waiting job may have changed, by id, with the earliest due time that
    /// this transaction added.
    changed: HashMap<i64, Option<Timestamp>>,
    /// Ended leases by queue id.
    freed: HashMap<i64, usize>,
    ended: EndedJobs,
}

#[derive(Debug)]
pub(crate) struct EndedLease {
    pub(crate) worker: String,
    pub(crate) since: i64,
    pub(crate) group: Option<String>,
}

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
    /// Its time is read after the write lock was taken; for `schedule_in`, at its call.
    reading: ReadTx<'c>,
    queue_ids: &'c mut QueueIds,
    buffered: Buffered,
    min_writer: i64,
}

impl<'c> Deref for WriteTx<'c> {
    type Target = ReadTx<'c>;

    fn deref(&self) -> &ReadTx<'c> {
        &self.reading
    }
}

impl<'c> WriteTx<'c> {
    pub(crate) fn begin(
        conn: &'c Connection,
        shared: &'c StoreShared,
        queue_ids: &'c mut QueueIds,
    ) -> StoreResult<Self> {
        let reading = ReadTx::new(conn, shared);
        let (min_writer, seq, token, granted) =
            reading.one(&shared.statements.counters, [], |row| row.try_into())?;
        let buffered = Buffered { seq, token, granted, ..Buffered::default() };
        let mut tx = Self { reading, queue_ids, buffered, min_writer };
        if tx.check_writer().is_ok() {
            tx.shorten_leases()?;
            tx.return_expired()?;
        }
        Ok(tx)
    }

    pub(crate) fn check_writer(&self) -> StoreResult<()> {
        schema::check_writer(self.min_writer)
    }

    pub(crate) fn finish(mut self) -> StoreResult<Changes> {
        for (queue_id, leases) in std::mem::take(&mut self.buffered.freed) {
            if self.was_full(queue_id, leases)? {
                self.wake_if_waiting(queue_id);
            }
        }
        if self.buffered.counters_changed {
            let Buffered { seq, token, granted, .. } = self.buffered;
            self.execute(&self.statements.save_counters, [seq, token, granted])?;
        }
        for (queue_id, delta) in &self.buffered.totals {
            let Totals { created, done, skipped, cancelled, replaced, removed, .. } = *delta;
            let [created, done, skipped, cancelled, replaced, removed] =
                [created, done, skipped, cancelled, replaced, removed]
                    .map(|count| i64::try_from(count).unwrap_or(i64::MAX));
            let values = [*queue_id, created, done, skipped, cancelled, replaced, removed];
            self.execute(&self.statements.add_totals, values)?;
        }
        self.buffered.ended.trim(self.reading)?;
        self.changes()
    }

    /// Wakes listeners if the first waiting job may be new: due no later than the earliest job
    /// added. If it is due later, this transaction removed the added job again.
    fn changes(&self) -> StoreResult<Changes> {
        let mut changes = Changes::default();
        for (queue_id, added) in &self.buffered.changed {
            let first = self.find(&self.statements.first_waiting, [queue_id], |row| row.get(0))?;
            let first = first.map(Timestamp::from_millis);
            changes.next_due.push((*queue_id, first));
            if let (Some(due), Some(added)) = (first, added)
                && due >= *added
                && let Some(name) = self.queue_name(*queue_id)?
            {
                changes.wakeups.push((name, due));
            }
        }
        Ok(changes)
    }

    /// `None` if the row is missing or its name invalid; such a queue has no listeners.
    fn queue_name(&self, queue_id: i64) -> StoreResult<Option<QueueName>> {
        let name = self.find(&self.statements.name_queue, [queue_id], |row| {
            Ok(row::queue_name(row.get_ref(0)?).ok())
        })?;
        Ok(name.flatten())
    }

    pub(crate) fn execute(&self, sql: &str, params: impl Params) -> StoreResult<usize> {
        Ok(self.conn.prepare_cached(sql)?.execute(params)?)
    }

    /// Marks a queue whose first waiting job may have changed, or that was paused or resumed.
    pub(crate) fn mark_changed(&mut self, queue_id: i64) {
        self.buffered.changed.entry(queue_id).or_default();
    }

    /// Wakes the queue's listeners if a job waits.
    pub(crate) fn wake_if_waiting(&mut self, queue_id: i64) {
        let added = self.buffered.changed.entry(queue_id).or_default();
        *added = earlier(*added, Some(Timestamp::from_millis(i64::MIN)));
    }

    /// Counts the end of a lease, to wake the queue's listeners if it was full.
    pub(crate) fn offer_room(&mut self, queue_id: i64) {
        *self.buffered.freed.entry(queue_id).or_default() += 1;
    }

    pub(crate) fn totals(&mut self, queue_id: i64) -> &mut Totals {
        self.buffered.totals.entry(queue_id).or_default()
    }

    pub(crate) fn ended(&mut self) -> &mut EndedJobs {
        &mut self.buffered.ended
    }

    /// Returns the `seq` that [`Self::advance_seq`] marks as used.
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

    pub(crate) fn grant(&mut self) -> i64 {
        let now = self.now.as_millis();
        // Later than `now` only in a process too old to shorten leases. A newer process must still
        // see that the clock was set back.
        self.buffered.granted = self.buffered.granted.max(now);
        self.buffered.counters_changed = true;
        now
    }

    /// Like [`ReadTx::find_queue`], but remembers the queue.
    pub(crate) fn find_queue(&mut self, name: &QueueName) -> StoreResult<Option<i64>> {
        if let Some(queue_id) = self.queue_ids.get(name) {
            return Ok(Some(*queue_id));
        }
        let queue_id = self.reading.find_queue(name)?;
        if let Some(queue_id) = queue_id {
            self.queue_ids.insert(name.clone(), queue_id);
        }
        Ok(queue_id)
    }

    pub(crate) fn find_or_add_queue(&mut self, name: &QueueName) -> StoreResult<i64> {
        if let Some(queue_id) = self.find_queue(name)? {
            return Ok(queue_id);
        }
        let queue_id = self.one(&self.statements.add_queue, [name.as_str()], |row| row.get(0))?;
        self.queue_ids.insert(name.clone(), queue_id);
        Ok(queue_id)
    }

    pub(crate) fn add_due(&mut self, queue_id: i64, at: Timestamp, seq: i64) -> StoreResult<()> {
        self.execute(&self.statements.add_due, [queue_id, at.as_millis(), seq])?;
        let added = self.buffered.changed.entry(queue_id).or_default();
        *added = earlier(*added, Some(at));
        Ok(())
    }

    /// Returns `false` if the job is leased or parked instead.
    pub(crate) fn remove_due(&mut self, queue_id: i64, at: i64, seq: i64) -> StoreResult<bool> {
        self.mark_changed(queue_id);
        Ok(self.execute(&self.statements.remove_due, [queue_id, at, seq])? == 1)
    }

    /// Restarts leases granted in the future, which exist only after the clock was set back.
    /// Otherwise a crashed process holds its job that much longer.
    fn shorten_leases(&mut self) -> StoreResult<()> {
        let now = self.now.as_millis();
        if self.buffered.granted > now {
            let shortened = self.execute(&self.statements.shorten_leases, [now])?;
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

    /// Returns the jobs of expired leases to their queues, with their due time and one more loss.
    fn return_expired(&mut self) -> StoreResult<()> {
        let now = self.now.as_millis();
        let expired = self.all(&self.statements.expired_leases, [now], |row| {
            let (worker, since, group) = (row.get(2)?, row.get(3)?, row.get(4)?);
            let lease = EndedLease { worker, since, group };
            Ok((row.get(0)?, row.get(1)?, lease))
        })?;
        for (seq, queue_id, lease) in expired {
            self.execute(&self.statements.remove_lease, [seq])?;
            self.release_job(queue_id, seq, &lease, 1, 1)?;
            if let Some(group) = &lease.group {
                self.unpark_first(queue_id, group)?;
            }
        }
        Ok(())
    }

    /// Returns a job whose lease was removed to its queue, with unchanged due time. Adds to its
    /// counts: a claim does not write the job's row, and readers of a leased job add its delivery.
    pub(crate) fn release_job(
        &mut self,
        queue_id: i64,
        seq: i64,
        lease: &EndedLease,
        deliveries: i64,
        losses: i64,
    ) -> StoreResult<()> {
        let counts = [seq, deliveries, losses];
        let due = self.find(&self.statements.release_job, counts, |row| row.get(0))?;
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

    pub(crate) fn note_run(
        &self,
        seq: i64,
        lease: &EndedLease,
        error: Option<&str>,
    ) -> StoreResult<()> {
        let EndedLease { worker, since, .. } = lease;
        self.execute(&self.statements.note_run, params![seq, since, worker, error])?;
        Ok(())
    }

    pub(crate) fn clear_error(&self, seq: i64) -> StoreResult<()> {
        self.execute(&self.statements.clear_error, [seq])?;
        Ok(())
    }
}
