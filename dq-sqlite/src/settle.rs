//! Settles leases with a verdict.

use dq_core::{DeadReason, Ending, Lease, Settled, Settlement, Timestamp, Verdict};
use rusqlite::params;

use crate::end::{JobEnd, JobTable, end_job};
use crate::error::{StoreError, StoreResult};
use crate::write_tx::{EndedLease, WriteTx};

/// `LostLease` if the lease is no longer held.
pub(crate) fn settle(tx: &mut WriteTx<'_>, settlement: &Settlement) -> StoreResult<Settled> {
    let queue = &settlement.lease.queue;
    let Some((queue_id, seq, lease)) = end_lease(tx, &settlement.lease)? else {
        // The handler may have ended the job itself, and so added to the history.
        if let (Some(queue_id), Some(limit)) = (tx.find_queue(queue)?, tx.history.get(queue)) {
            tx.ended().set_limit(queue_id, limit);
        }
        return Ok(Settled::LostLease);
    };
    let end = |tx: &mut WriteTx<'_>, ending, reason| {
        let end = JobEnd { ending, reason, lease: Some(&lease) };
        end_job(tx, queue, queue_id, seq, JobTable::Live, end)
    };
    match &settlement.verdict {
        Verdict::Done => drop(end(tx, Ending::Done, None)?),
        Verdict::Skip { reason } => drop(end(tx, Ending::Skipped, Some(reason.as_str()))?),
        Verdict::Retry { due, error } => {
            requeue(tx, queue_id, seq, &lease, due.resolve(tx.now), Some(error))?;
        }
        Verdict::Snooze(due) => requeue(tx, queue_id, seq, &lease, due.resolve(tx.now), None)?,
        Verdict::Throttle(due) => {
            let due = due.resolve(tx.now);
            tx.close_queue(queue_id, due)?;
            requeue(tx, queue_id, seq, &lease, due, None)?;
        }
        Verdict::Again { due, payload } => {
            tx.note_run(seq, &lease, None)?;
            tx.clear_error(seq)?;
            let due = due.resolve(tx.now);
            let values = params![seq, due.as_millis(), &payload[..]];
            tx.execute(&tx.statements.again_job, values)?;
            tx.add_due(queue_id, due, seq)?;
        }
        Verdict::Dead { reason, failed } => {
            tx.note_run(seq, &lease, None)?;
            mark_dead(tx, seq, reason, i64::from(*failed), 1)?;
        }
        // A delivery counts only if the handler started. The lease was not lost.
        Verdict::Release { started } => {
            tx.release_job(queue_id, seq, &lease, i64::from(*started), 0)?;
        }
        verdict => return Err(StoreError::unsupported(verdict)),
    }
    if let Some(group) = &lease.group {
        tx.unpark_first(queue_id, group)?;
    }
    tx.offer_room(queue_id);
    Ok(Settled::Accepted)
}

/// Returns `None` if the lease is no longer held.
fn end_lease(tx: &mut WriteTx<'_>, lease: &Lease) -> StoreResult<Option<(i64, i64, EndedLease)>> {
    let Some(queue_id) = tx.find_queue(&lease.queue)? else {
        return Ok(None);
    };
    // Tokens are stored as i64; a larger one was never issued.
    let Ok(token) = i64::try_from(lease.token.0) else {
        return Ok(None);
    };
    let held = params![lease.job.to_bytes(), queue_id, token, tx.now.as_millis()];
    tx.find(&tx.statements.end_lease, held, |row| {
        let (worker, since, group) = (row.get(1)?, row.get(2)?, row.get(3)?);
        let ended = EndedLease { worker, since, group };
        Ok((queue_id, row.get(0)?, ended))
    })
}

/// Counts the delivery, and an attempt if it failed; resets the losses.
fn requeue(
    tx: &mut WriteTx<'_>,
    queue_id: i64,
    seq: i64,
    lease: &EndedLease,
    due: Timestamp,
    error: Option<&str>,
) -> StoreResult<()> {
    tx.note_run(seq, lease, error)?;
    let attempts = i64::from(error.is_some());
    tx.execute(&tx.statements.requeue_job, [seq, due.as_millis(), attempts])?;
    tx.add_due(queue_id, due, seq)
}

/// The caller removes the job's `due` or `lease` row.
pub(crate) fn mark_dead(
    tx: &mut WriteTx<'_>,
    seq: i64,
    reason: &DeadReason,
    attempts: i64,
    deliveries: i64,
) -> StoreResult<()> {
    let (kind, died) = (reason.kind.as_str(), tx.now.as_millis());
    let values = params![seq, attempts, deliveries, died, kind, reason.message];
    tx.execute(&tx.statements.add_dead, values)?;
    tx.execute(&tx.statements.remove_job, [seq])?;
    Ok(())
}
