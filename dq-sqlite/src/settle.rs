//! How leases end.

use dq_core::{DeadReason, Lease, Settled, Settlement, Timestamp, Verdict};
use rusqlite::{OptionalExtension, params};

use crate::error::{Failure, Outcome};
use crate::tx::Tx;

/// Ends one lease with its verdict.
pub(crate) fn settle(tx: &mut Tx<'_>, settlement: &Settlement) -> Outcome<Settled> {
    let Some((q, seq)) = end(tx, &settlement.lease)? else {
        return Ok(Settled::Stale);
    };
    match &settlement.verdict {
        Verdict::Done => {
            tx.prepare(&tx.sql.remove_job)?.execute([seq])?;
            tx.totals(q).done += 1;
        }
        Verdict::Skip => {
            tx.prepare(&tx.sql.remove_job)?.execute([seq])?;
            tx.totals(q).skipped += 1;
        }
        Verdict::Retry(due) => come_again(tx, q, seq, due.resolve(tx.now), 1)?,
        Verdict::Snooze(due) => come_again(tx, q, seq, due.resolve(tx.now), 0)?,
        Verdict::Dead { reason, failed } => bury(tx, seq, reason, i64::from(*failed), 1)?,
        Verdict::Release { started: true } => tx.hand_back(q, seq, 0)?,
        Verdict::Release { started: false } => undo(tx, q, seq)?,
        verdict => return Err(Failure::unknown(verdict)),
    }
    Ok(Settled::Accepted)
}

/// Ends a lease if it is still held, and gives the numbers of queue and job.
fn end(tx: &mut Tx<'_>, lease: &Lease) -> Outcome<Option<(i64, i64)>> {
    let Some(q) = tx.find_queue(&lease.queue)? else {
        return Ok(None);
    };
    // Tokens are counted up in an i64; a larger one was never given out.
    let Ok(token) = i64::try_from(lease.token.0) else {
        return Ok(None);
    };
    let seq = tx
        .prepare(&tx.sql.end_lease)?
        .query_row(params![lease.job.to_bytes(), q, token], |row| row.get(0))
        .optional()?;
    Ok(seq.map(|seq| (q, seq)))
}

/// The numbers of queue and job of a lease, if it is still held.
pub(crate) fn held(tx: &mut Tx<'_>, lease: &Lease) -> Outcome<Option<(i64, i64)>> {
    let Some(queue) = tx.find_queue(&lease.queue)? else {
        return Ok(None);
    };
    let found: Option<(i64, i64, i64)> = tx
        .prepare(&tx.sql.held_lease)?
        .query_row([lease.job.to_bytes()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    Ok(found
        .filter(|(_, q, token)| *q == queue && token.unsigned_abs() == lease.token.0)
        .map(|(seq, q, _)| (q, seq)))
}

fn come_again(tx: &mut Tx<'_>, q: i64, seq: i64, due: Timestamp, attempts: i64) -> Outcome<()> {
    tx.prepare(&tx.sql.return_job)?.execute([seq, due.as_millis(), attempts])?;
    tx.wait(q, due, seq)
}

/// As if the lease had never been: the wide row is not touched, since it knows nothing of it.
fn undo(tx: &mut Tx<'_>, q: i64, seq: i64) -> Outcome<()> {
    let due = tx.prepare(&tx.sql.job_due)?.query_row([seq], |row| row.get(0))?;
    tx.wait(q, Timestamp::from_millis(due), seq)
}

/// Moves a job that neither waits nor runs to the dead.
pub(crate) fn bury(
    tx: &mut Tx<'_>,
    seq: i64,
    reason: &DeadReason,
    attempts: i64,
    deliveries: i64,
) -> Outcome<()> {
    let (kind, died) = (reason.kind.as_str(), tx.now.as_millis());
    tx.prepare(&tx.sql.bury_job)?.execute(params![
        seq,
        attempts,
        deliveries,
        died,
        kind,
        reason.message
    ])?;
    tx.prepare(&tx.sql.remove_job)?.execute([seq])?;
    Ok(())
}
