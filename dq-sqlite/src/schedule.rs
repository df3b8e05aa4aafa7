//! Schedules, cancels and reschedules, one job at a time.
//!
//! `WriteTx::begin` has returned expired leases to their queues: a leased job is running, other
//! live jobs are in the `due` or the `parked` table.

use dq_core::{
    Cancelled, Ending, JobId, JobRef, NewJob, OnRunning, Receipt, Reschedule, Rescheduled,
    Scheduled, Target, Timestamp,
};
use rusqlite::{Row, params};

use crate::end::{JobEnd, JobTable, end_job};
use crate::error::StoreResult;
use crate::row::{self, UnknownGroup, encode_headers};
use crate::write_tx::WriteTx;

#[derive(Debug, Clone)]
struct LiveJob {
    seq: i64,
    id: JobId,
    due: Timestamp,
    queue_id: i64,
    group: Result<Option<String>, UnknownGroup>,
}

impl LiveJob {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            seq: row.get(0)?,
            id: JobId::from_bytes(row.get(1)?),
            due: Timestamp::from_millis(row.get(2)?),
            queue_id: row.get(3)?,
            group: row::group(row.get_ref(4)?),
        })
    }

    const fn receipt(&self) -> Receipt {
        Receipt { id: self.id, due: self.due }
    }

    fn is_running(&self, tx: &WriteTx<'_>) -> StoreResult<bool> {
        tx.exists(&tx.statements.is_leased, [self.seq])
    }

    /// Returns `false` if the job is running.
    fn take(&self, tx: &mut WriteTx<'_>) -> StoreResult<bool> {
        let at = self.due.as_millis();
        if tx.remove_due(self.queue_id, at, self.seq)? {
            match &self.group {
                Ok(Some(group)) => tx.unpark_first(self.queue_id, group)?,
                Ok(None) => {}
                Err(UnknownGroup) => tx.unpark_all(self.queue_id)?,
            }
            return Ok(true);
        }
        if let Ok(Some(group)) = &self.group {
            let parked = params![self.queue_id, group, at, self.seq];
            if tx.execute(&tx.statements.remove_parked, parked)? == 1 {
                return Ok(true);
            }
        }
        if self.is_running(tx)? {
            return Ok(false);
        }
        // Another program has changed the due time in one of the tables.
        tx.execute(&tx.statements.remove_due_of_job, [self.queue_id, self.seq])?;
        tx.execute(&tx.statements.remove_parked_job, [self.queue_id, self.seq])?;
        if !matches!(self.group, Ok(None)) {
            tx.unpark_all(self.queue_id)?;
        }
        Ok(true)
    }
}

pub(crate) fn schedule(tx: &mut WriteTx<'_>, job: &NewJob) -> StoreResult<Scheduled> {
    let queue_id = tx.find_or_add_queue(&job.queue)?;
    let due = job.due.resolve(tx.now);
    // A dead job keeps its id, but not its key.
    if let Some((due, job_queue)) = dead_job(tx, job.id)? {
        return Ok(same_id(Receipt { id: job.id, due }, job_queue == queue_id));
    }
    if let Some(due) = remembered(tx, job, queue_id)? {
        // A process with a shorter history may have stored the job.
        return Ok(match by_id(tx, job.id)? {
            Some(existing) => same_id(existing.receipt(), existing.queue_id == queue_id),
            None => Scheduled::Ended(Receipt { id: job.id, due }),
        });
    }
    // Insert first: conflicts are rare, and the unique indexes detect them.
    if insert(tx, queue_id, job, due)? {
        return Ok(Scheduled::Created(Receipt { id: job.id, due }));
    }
    if let Some(existing) = by_id(tx, job.id)? {
        return Ok(same_id(existing.receipt(), existing.queue_id == queue_id));
    }
    resolve_key_conflict(tx, queue_id, job, due)
}

/// In the same queue, the call is a repetition.
const fn same_id(existing: Receipt, in_same_queue: bool) -> Scheduled {
    if in_same_queue { Scheduled::Created(existing) } else { Scheduled::Kept(existing) }
}

fn resolve_key_conflict(
    tx: &mut WriteTx<'_>,
    queue_id: i64,
    job: &NewJob,
    due: Timestamp,
) -> StoreResult<Scheduled> {
    let key = job.key.as_ref().map(|key| key.as_str());
    let existing = tx.one(&tx.statements.job_by_key, params![queue_id, key], LiveJob::read)?;
    if existing.is_running(tx)? {
        if job.on_running != OnRunning::Detach {
            return Ok(Scheduled::AlreadyRunning(existing.receipt()));
        }
        tx.execute(&tx.statements.detach_job, [existing.seq])?;
        insert(tx, queue_id, job, due)?;
        return Ok(Scheduled::Created(Receipt { id: job.id, due }));
    }
    if !job.on_conflict.replaces(existing.due, due) {
        return Ok(Scheduled::Kept(existing.receipt()));
    }
    existing.take(tx)?;
    let end = JobEnd::unleased(Ending::Replaced);
    end_job(tx, &job.queue, queue_id, existing.seq, JobTable::Live, end)?;
    insert(tx, queue_id, job, due)?;
    Ok(Scheduled::Replaced(Receipt { id: job.id, due }))
}

/// Returns `false` if another live job has the id or key.
fn insert(tx: &mut WriteTx<'_>, queue_id: i64, job: &NewJob, due: Timestamp) -> StoreResult<bool> {
    let seq = tx.next_seq();
    let values = params![
        seq,
        job.id.to_bytes(),
        queue_id,
        job.key.as_ref().map(|key| key.as_str()),
        due.as_millis(),
        tx.now.as_millis(),
        job.max_attempts,
        encode_headers(&job.headers),
        &*job.payload,
    ];
    if tx.execute(&tx.statements.add_job, values)? == 0 {
        return Ok(false);
    }
    tx.advance_seq();
    if !job.remember.is_zero() {
        let remember = i64::try_from(job.remember.as_millis()).unwrap_or(i64::MAX).max(1);
        tx.execute(&tx.statements.note_remember, [seq, remember])?;
    }
    tx.add_due(queue_id, due, seq)?;
    tx.totals(queue_id).created += 1;
    Ok(true)
}

pub(crate) fn cancel(tx: &mut WriteTx<'_>, job: &JobRef) -> StoreResult<Cancelled> {
    let Some(existing) = find(tx, job)? else {
        return Ok(Cancelled::NotFound);
    };
    if !existing.take(tx)? {
        return Ok(Cancelled::AlreadyRunning);
    }
    let end = JobEnd::unleased(Ending::Cancelled);
    end_job(tx, &job.queue, existing.queue_id, existing.seq, JobTable::Live, end)?;
    Ok(Cancelled::Cancelled)
}

pub(crate) fn reschedule(tx: &mut WriteTx<'_>, change: &Reschedule) -> StoreResult<Rescheduled> {
    let Some(existing) = find(tx, &change.job)? else {
        return Ok(Rescheduled::NotFound);
    };
    if !existing.take(tx)? {
        return Ok(Rescheduled::AlreadyRunning);
    }
    let due = change.due.resolve(tx.now);
    tx.execute(&tx.statements.reschedule_job, [existing.seq, due.as_millis()])?;
    tx.add_due(existing.queue_id, due, existing.seq)?;
    Ok(Rescheduled::Moved(Receipt { id: existing.id, due }))
}

fn find(tx: &mut WriteTx<'_>, job: &JobRef) -> StoreResult<Option<LiveJob>> {
    let Some(queue_id) = tx.find_queue(&job.queue)? else {
        return Ok(None);
    };
    match &job.target {
        Target::Id(id) => Ok(by_id(tx, *id)?.filter(|existing| existing.queue_id == queue_id)),
        Target::Key(key) => {
            tx.find(&tx.statements.job_by_key, params![queue_id, key.as_str()], LiveJob::read)
        }
    }
}

fn by_id(tx: &WriteTx<'_>, id: JobId) -> StoreResult<Option<LiveJob>> {
    tx.find(&tx.statements.job_by_id, [id.to_bytes()], LiveJob::read)
}

fn dead_job(tx: &WriteTx<'_>, id: JobId) -> StoreResult<Option<(Timestamp, i64)>> {
    tx.find(&tx.statements.dead_by_id, [id.to_bytes()], |row| {
        Ok((Timestamp::from_millis(row.get(1)?), row.get(2)?))
    })
}

/// Due time of the ended job, if its id is pinned or the queue's history still has it.
fn remembered(tx: &WriteTx<'_>, job: &NewJob, queue_id: i64) -> StoreResult<Option<Timestamp>> {
    type Found = (i64, Option<i64>, Option<i64>);
    let ended = params![job.id.to_bytes(), tx.now.as_millis(), queue_id];
    let found: Vec<Found> = tx.all(&tx.statements.remembered, ended, |row| row.try_into())?;
    for (due, at, seq) in found {
        let is_remembered = match at.zip(seq) {
            None => true,
            Some(position) => tx.is_in_history(&job.queue, queue_id, position)?,
        };
        if is_remembered {
            return Ok(Some(Timestamp::from_millis(due)));
        }
    }
    Ok(None)
}
