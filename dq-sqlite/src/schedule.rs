//! Schedule, cancel and reschedule, one job at a time.

use dq_core::{
    Cancelled, JobId, JobRef, NewJob, Receipt, Reschedule, Rescheduled, Scheduled, Target,
    Timestamp,
};
use rusqlite::{OptionalExtension, Row, params};

use crate::error::StoreResult;
use crate::row::encode_headers;
use crate::write_tx::WriteTx;

/// A live job, with the columns that decide conflicts.
#[derive(Debug, Clone, Copy)]
struct LiveJob {
    seq: i64,
    id: JobId,
    due: Timestamp,
    queue_id: i64,
}

impl LiveJob {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            seq: row.get(0)?,
            id: JobId::from_bytes(row.get(1)?),
            due: Timestamp::from_millis(row.get(2)?),
            queue_id: row.get(3)?,
        })
    }

    const fn receipt(&self) -> Receipt {
        Receipt { id: self.id, due: self.due }
    }

    /// A live job that is not in the `due` table is leased.
    fn is_running(&self, tx: &WriteTx<'_>) -> StoreResult<bool> {
        let mut is_due = tx.prepare(&tx.statements.is_due)?;
        Ok(!is_due.exists([self.queue_id, self.due.as_millis(), self.seq])?)
    }
}

/// Stores a job, or resolves a conflict with the job that has its id or key.
pub(crate) fn schedule(tx: &mut WriteTx<'_>, job: &NewJob) -> StoreResult<Scheduled> {
    let queue_id = tx.find_or_add_queue(&job.queue)?;
    let due = job.due.resolve(tx.now);
    // A dead job keeps its id, but not its key.
    if let Some(due) = dead_job_due(tx, job.id)? {
        return Ok(Scheduled::Kept(Receipt { id: job.id, due }));
    }
    // Insert first and query only after a conflict: conflicts are rare, and the unique indexes
    // detect them.
    if insert(tx, queue_id, job, due)? {
        return Ok(Scheduled::Created(Receipt { id: job.id, due }));
    }
    if let Some(existing) = by_id(tx, job.id)? {
        let running = existing.is_running(tx)?;
        let receipt = existing.receipt();
        return Ok(if running {
            Scheduled::AlreadyRunning(receipt)
        } else {
            Scheduled::Kept(receipt)
        });
    }
    resolve_key_conflict(tx, queue_id, job, due)
}

/// Resolves a conflict of keys by the job's `on_conflict` policy.
fn resolve_key_conflict(
    tx: &mut WriteTx<'_>,
    queue_id: i64,
    job: &NewJob,
    due: Timestamp,
) -> StoreResult<Scheduled> {
    let key = job.key.as_ref().map(|key| key.as_str());
    let existing =
        tx.prepare(&tx.statements.job_by_key)?.query_row(params![queue_id, key], LiveJob::read)?;
    if existing.is_running(tx)? {
        return Ok(Scheduled::AlreadyRunning(existing.receipt()));
    }
    if !job.on_conflict.replaces(existing.due, due) {
        return Ok(Scheduled::Kept(existing.receipt()));
    }
    tx.remove_due(queue_id, existing.due.as_millis(), existing.seq)?;
    tx.prepare(&tx.statements.remove_job)?.execute([existing.seq])?;
    tx.totals(queue_id).replaced += 1;
    insert(tx, queue_id, job, due)?;
    Ok(Scheduled::Replaced(Receipt { id: job.id, due }))
}

/// Inserts a job; `false` if another live job has its id or key.
fn insert(tx: &mut WriteTx<'_>, queue_id: i64, job: &NewJob, due: Timestamp) -> StoreResult<bool> {
    let seq = tx.next_seq();
    let inserted = tx.prepare(&tx.statements.add_job)?.execute(params![
        seq,
        job.id.to_bytes(),
        queue_id,
        job.key.as_ref().map(|key| key.as_str()),
        due.as_millis(),
        tx.now.as_millis(),
        job.max_attempts,
        encode_headers(&job.headers),
        &*job.payload,
    ])?;
    if inserted == 0 {
        return Ok(false);
    }
    tx.advance_seq();
    tx.add_due(queue_id, due, seq)?;
    tx.totals(queue_id).created += 1;
    Ok(true)
}

/// Cancels one job, unless it is running.
pub(crate) fn cancel(tx: &mut WriteTx<'_>, job: &JobRef) -> StoreResult<Cancelled> {
    let Some(existing) = find(tx, job)? else {
        return Ok(Cancelled::NotFound);
    };
    if !tx.remove_due(existing.queue_id, existing.due.as_millis(), existing.seq)? {
        return Ok(Cancelled::AlreadyRunning);
    }
    tx.prepare(&tx.statements.remove_job)?.execute([existing.seq])?;
    tx.totals(existing.queue_id).cancelled += 1;
    Ok(Cancelled::Cancelled)
}

/// Changes the due time of one job, unless it is running.
pub(crate) fn reschedule(tx: &mut WriteTx<'_>, change: &Reschedule) -> StoreResult<Rescheduled> {
    let Some(existing) = find(tx, &change.job)? else {
        return Ok(Rescheduled::NotFound);
    };
    if !tx.remove_due(existing.queue_id, existing.due.as_millis(), existing.seq)? {
        return Ok(Rescheduled::AlreadyRunning);
    }
    let due = change.due.resolve(tx.now);
    tx.prepare(&tx.statements.reschedule_job)?.execute([existing.seq, due.as_millis()])?;
    tx.add_due(existing.queue_id, due, existing.seq)?;
    Ok(Rescheduled::Moved(Receipt { id: existing.id, due }))
}

/// Finds the live job that a reference names; `None` if there is none in its queue.
fn find(tx: &mut WriteTx<'_>, job: &JobRef) -> StoreResult<Option<LiveJob>> {
    let Some(queue_id) = tx.find_queue(&job.queue)? else {
        return Ok(None);
    };
    match &job.target {
        Target::Id(id) => Ok(by_id(tx, *id)?.filter(|existing| existing.queue_id == queue_id)),
        Target::Key(key) => Ok(tx
            .prepare(&tx.statements.job_by_key)?
            .query_row(params![queue_id, key.as_str()], LiveJob::read)
            .optional()?),
    }
}

fn by_id(tx: &WriteTx<'_>, id: JobId) -> StoreResult<Option<LiveJob>> {
    Ok(tx
        .prepare(&tx.statements.job_by_id)?
        .query_row([id.to_bytes()], LiveJob::read)
        .optional()?)
}

/// The due time of the dead job with this id; `None` if no dead job has it.
fn dead_job_due(tx: &WriteTx<'_>, id: JobId) -> StoreResult<Option<Timestamp>> {
    let due = tx
        .prepare(&tx.statements.dead_by_id)?
        .query_row([id.to_bytes()], |row| row.get(1))
        .optional()?;
    Ok(due.map(Timestamp::from_millis))
}
