//! Schedule, cancel and reschedule.

use dq_core::{
    Cancelled, JobId, JobRef, NewJob, Receipt, Reschedule, Rescheduled, Scheduled, Target,
    Timestamp,
};
use rusqlite::{OptionalExtension, Row, params};

use crate::error::Outcome;
use crate::row::encode_headers;
use crate::tx::Tx;

/// A live job as far as conflicts need it.
#[derive(Debug, Clone, Copy)]
struct Present {
    seq: i64,
    id: JobId,
    due: Timestamp,
    q: i64,
}

impl Present {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            seq: row.get(0)?,
            id: JobId::from_bytes(row.get(1)?),
            due: Timestamp::from_millis(row.get(2)?),
            q: row.get(3)?,
        })
    }

    const fn receipt(&self) -> Receipt {
        Receipt { id: self.id, due: self.due }
    }

    /// A live job that does not wait is leased.
    fn is_running(&self, tx: &Tx<'_>) -> Outcome<bool> {
        let mut waits = tx.prepare(&tx.sql.is_due)?;
        Ok(!waits.exists([self.q, self.due.as_millis(), self.seq])?)
    }
}

/// Stores one job, or says which one has its id or key.
pub(crate) fn schedule(tx: &mut Tx<'_>, job: &NewJob) -> Outcome<Scheduled> {
    let q = tx.queue(&job.queue)?;
    let due = job.due.resolve(tx.now);
    if let Some(due) = dead(tx, job.id)? {
        return Ok(Scheduled::Kept(Receipt { id: job.id, due }));
    }
    // Then the insertion, then the questions: conflicts are rare, and the unique indexes know.
    if insert(tx, q, job, due)? {
        return Ok(Scheduled::Created(Receipt { id: job.id, due }));
    }
    if let Some(present) = by_id(tx, job.id)? {
        let running = present.is_running(tx)?;
        let receipt = present.receipt();
        return Ok(if running {
            Scheduled::AlreadyRunning(receipt)
        } else {
            Scheduled::Kept(receipt)
        });
    }
    replace(tx, q, job, due)
}

/// Settles a conflict of keys.
fn replace(tx: &mut Tx<'_>, q: i64, job: &NewJob, due: Timestamp) -> Outcome<Scheduled> {
    let key = job.key.as_ref().map(|key| key.as_str());
    let present = tx.prepare(&tx.sql.job_by_key)?.query_row(params![q, key], Present::read)?;
    if present.is_running(tx)? {
        return Ok(Scheduled::AlreadyRunning(present.receipt()));
    }
    if !job.on_conflict.replaces(present.due, due) {
        return Ok(Scheduled::Kept(present.receipt()));
    }
    tx.unwait(q, present.due.as_millis(), present.seq)?;
    tx.prepare(&tx.sql.remove_job)?.execute([present.seq])?;
    tx.totals(q).replaced += 1;
    insert(tx, q, job, due)?;
    Ok(Scheduled::Replaced(Receipt { id: job.id, due }))
}

/// `false` if another job has the id or the key.
fn insert(tx: &mut Tx<'_>, q: i64, job: &NewJob, due: Timestamp) -> Outcome<bool> {
    let seq = tx.next_seq();
    let inserted = tx.prepare(&tx.sql.add_job)?.execute(params![
        seq,
        job.id.to_bytes(),
        q,
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
    tx.take_seq();
    tx.wait(q, due, seq)?;
    tx.totals(q).created += 1;
    Ok(true)
}

/// Takes one job back.
pub(crate) fn cancel(tx: &mut Tx<'_>, job: &JobRef) -> Outcome<Cancelled> {
    let Some(present) = find(tx, job)? else {
        return Ok(Cancelled::NotFound);
    };
    if !tx.unwait(present.q, present.due.as_millis(), present.seq)? {
        return Ok(Cancelled::AlreadyRunning);
    }
    tx.prepare(&tx.sql.remove_job)?.execute([present.seq])?;
    tx.totals(present.q).cancelled += 1;
    Ok(Cancelled::Cancelled)
}

/// Moves one job in time.
pub(crate) fn reschedule(tx: &mut Tx<'_>, wish: &Reschedule) -> Outcome<Rescheduled> {
    let Some(present) = find(tx, &wish.job)? else {
        return Ok(Rescheduled::NotFound);
    };
    if !tx.unwait(present.q, present.due.as_millis(), present.seq)? {
        return Ok(Rescheduled::AlreadyRunning);
    }
    let due = wish.due.resolve(tx.now);
    tx.prepare(&tx.sql.move_job)?.execute([present.seq, due.as_millis()])?;
    tx.wait(present.q, due, present.seq)?;
    Ok(Rescheduled::Moved(Receipt { id: present.id, due }))
}

/// The live job that is meant.
fn find(tx: &mut Tx<'_>, job: &JobRef) -> Outcome<Option<Present>> {
    let Some(q) = tx.find_queue(&job.queue)? else {
        return Ok(None);
    };
    match &job.target {
        Target::Id(id) => Ok(by_id(tx, *id)?.filter(|present| present.q == q)),
        Target::Key(key) => Ok(tx
            .prepare(&tx.sql.job_by_key)?
            .query_row(params![q, key.as_str()], Present::read)
            .optional()?),
    }
}

fn by_id(tx: &Tx<'_>, id: JobId) -> Outcome<Option<Present>> {
    Ok(tx.prepare(&tx.sql.job_by_id)?.query_row([id.to_bytes()], Present::read).optional()?)
}

/// When the dead job with this id was due.
fn dead(tx: &Tx<'_>, id: JobId) -> Outcome<Option<Timestamp>> {
    let due =
        tx.prepare(&tx.sql.dead_by_id)?.query_row([id.to_bytes()], |row| row.get(1)).optional()?;
    Ok(due.map(Timestamp::from_millis))
}
