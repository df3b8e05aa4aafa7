//! Claim and renew: leases given out and kept.

use std::collections::HashSet;

use dq_core::{
    Claimed, DeadKind, DeadReason, FencingToken, Job, LeasedJob, QueueName, Renewal, Renewed,
    Timestamp, Want,
};
use rusqlite::{OptionalExtension, params};

use crate::error::Outcome;
use crate::row;
use crate::settle::{self, held};
use crate::tx::Tx;

/// Leases due jobs of all wanted queues. Writes nothing if none is due.
pub(crate) fn claim(
    tx: &mut Tx<'_>,
    wants: &[Want],
    limit: usize,
    worker: &str,
) -> Outcome<Claimed> {
    let mut jobs = Vec::new();
    let mut next_due = None;
    let mut open = HashSet::new();
    for want in wants {
        let Some((q, false)) = state(tx, want)? else {
            continue;
        };
        open.insert(q);
        let max = want.max.min(limit - jobs.len());
        if max > 0 {
            lease_due(tx, q, want, max, worker, &mut jobs)?;
        }
        next_due = earlier(next_due, tx.earliest_due(q)?);
    }
    next_due = earlier(next_due, first_lapse(tx, &open)?);
    Ok(Claimed { jobs, next_due, now: tx.now })
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

/// The number of a queue and whether it is paused. Not from memory: any process may pause it.
fn state(tx: &Tx<'_>, want: &Want) -> Outcome<Option<(i64, bool)>> {
    Ok(tx
        .prepare(&tx.sql.queue_state)?
        .query_row([want.queue.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?)
}

fn lease_due(
    tx: &mut Tx<'_>,
    q: i64,
    want: &Want,
    max: usize,
    worker: &str,
    leased: &mut Vec<LeasedJob>,
) -> Outcome<()> {
    let due = read_due(tx, q, &want.queue, max)?;
    let Some((seq, at, _)) = due.last() else {
        return Ok(());
    };
    // The jobs read are the first of the queue, hence neighbours: one statement for all.
    tx.prepare(&tx.sql.remove_due_until)?.execute([q, *at, *seq])?;
    let leased_until = tx.now + want.lease_for;
    for (seq, _, job) in due {
        match job {
            Ok(mut job) => {
                let token = tx.next_token();
                let until = leased_until.as_millis();
                tx.prepare(&tx.sql.add_lease)?.execute(params![seq, q, until, token, worker])?;
                job.deliveries = job.deliveries.saturating_add(1);
                let token = FencingToken(token.unsigned_abs());
                leased.push(LeasedJob { job, token, leased_until });
            }
            Err(message) => {
                let reason = DeadReason::new(DeadKind::Quarantined, message);
                settle::bury(tx, seq, &reason, 0, 0)?;
            }
        }
    }
    Ok(())
}

type DueJob = (i64, i64, Result<Job, String>);

fn read_due(tx: &Tx<'_>, q: i64, queue: &QueueName, max: usize) -> Outcome<Vec<DueJob>> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let mut statement = tx.prepare(&tx.sql.due_jobs)?;
    let due = statement
        .query_map([q, tx.now.as_millis(), max], |row| {
            let (seq, at) = row::place(row)?;
            Ok((seq, at, row::job(row, queue)))
        })?
        .collect::<rusqlite::Result<_>>()?;
    Ok(due)
}

/// When the first lease of these queues ends. Leases are few, at most one per running handler, and
/// read in order of their ends, so the first that counts is the answer.
fn first_lapse(tx: &Tx<'_>, queues: &HashSet<i64>) -> Outcome<Option<Timestamp>> {
    let mut statement = tx.prepare(&tx.sql.lease_ends)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if queues.contains(&row.get(1)?) {
            return Ok(Some(Timestamp::from_millis(row.get(0)?)));
        }
    }
    Ok(None)
}

/// Extends one lease.
pub(crate) fn renew(tx: &mut Tx<'_>, renewal: &Renewal) -> Outcome<Renewed> {
    let Some((_, seq)) = held(tx, &renewal.lease)? else {
        return Ok(Renewed::Lost);
    };
    let until = tx.now + renewal.lease_for;
    tx.prepare(&tx.sql.extend_lease)?.execute([seq, until.as_millis()])?;
    Ok(Renewed::Until(until))
}
