//! Settles leases with a verdict.

use dq_core::{DeadReason, Ending, Lease, Settled, Settlement, Timestamp, Verdict};
use rusqlite::{OptionalExtension, params};

use crate::end::{JobEnd, JobTable, end_job};
use crate::error::{StoreError, StoreResult};
use crate::write_tx::{EndedLease, WriteTx};

/// `Stale` if the lease is no longer held.
pub(crate) fn settle(tx: &mut WriteTx<'_>, settlement: &Settlement) -> StoreResult<Settled> {
    let Some((queue_id, seq, lease)) = end_lease(tx, &settlement.lease)? else {
        return Ok(Settled::Stale);
    };
    let queue = &settlement.lease.queue;
    let end = |tx: &mut WriteTx<'_>, ending, reason| {
        let end = JobEnd { ending, reason, lease: Some(&lease) };
        end_job(tx, queue, queue_id, seq, JobTable::Live, end)
    };
    match &settlement.verdict {
        Verdict::Done => drop(end(tx, Ending::Done, None)?),
        Verdict::Skip { reason } => drop(end(tx, Ending::Skipped, Some(reason.as_str()))?),
        Verdict::Retry { due, error } => {
            tx.note_run(seq, &lease, Some(error))?;
            requeue(tx, queue_id, seq, due.resolve(tx.now), 1)?;
        }
        Verdict::Snooze(due) => {
            tx.note_run(seq, &lease, None)?;
            requeue(tx, queue_id, seq, due.resolve(tx.now), 0)?;
        }
        Verdict::Again { due, payload } => {
            tx.note_run(seq, &lease, None)?;
            tx.clear_error(seq)?;
            let due = due.resolve(tx.now);
            tx.prepare(&tx.statements.again_job)?.execute(params![
                seq,
                due.as_millis(),
                &payload[..]
            ])?;
            tx.add_due(queue_id, due, seq)?;
        }
        Verdict::Dead { reason, failed } => {
            tx.note_run(seq, &lease, None)?;
            move_to_dead(tx, seq, reason, i64::from(*failed), 1)?;
        }
        // The delivery counts; the lease was not lost (0).
        Verdict::Release { started: true } => tx.release_job(queue_id, seq, 0, &lease)?,
        Verdict::Release { started: false } => {
            tx.note_run(seq, &lease, None)?;
            release_unstarted(tx, queue_id, seq)?;
        }
        verdict => return Err(StoreError::unsupported(verdict)),
    }
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
    let ended = tx
        .prepare(&tx.statements.end_lease)?
        .query_row(params![lease.job.to_bytes(), queue_id, token, tx.now.as_millis()], |row| {
            let ended = EndedLease { worker: row.get(1)?, since: row.get(2)? };
            Ok((queue_id, row.get(0)?, ended))
        })
        .optional()?;
    Ok(ended)
}

/// Counts the delivery, adds `attempts` failed attempts, resets the losses.
fn requeue(
    tx: &mut WriteTx<'_>,
    queue_id: i64,
    seq: i64,
    due: Timestamp,
    attempts: i64,
) -> StoreResult<()> {
    tx.prepare(&tx.statements.requeue_job)?.execute([seq, due.as_millis(), attempts])?;
    tx.add_due(queue_id, due, seq)
}

/// A delivery counts only if the handler started.
fn release_unstarted(tx: &mut WriteTx<'_>, queue_id: i64, seq: i64) -> StoreResult<()> {
    let due = tx.prepare(&tx.statements.job_due)?.query_row([seq], |row| row.get(0))?;
    tx.add_due(queue_id, Timestamp::from_millis(due), seq)
}

/// The caller has removed the job's `due` or `lease` row.
pub(crate) fn move_to_dead(
    tx: &mut WriteTx<'_>,
    seq: i64,
    reason: &DeadReason,
    attempts: i64,
    deliveries: i64,
) -> StoreResult<()> {
    let (kind, died) = (reason.kind.as_str(), tx.now.as_millis());
    tx.prepare(&tx.statements.add_dead)?.execute(params![
        seq,
        attempts,
        deliveries,
        died,
        kind,
        reason.message
    ])?;
    tx.prepare(&tx.statements.remove_job)?.execute([seq])?;
    Ok(())
}
