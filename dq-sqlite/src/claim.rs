//! Claim and renew: leases given out and kept.

use std::collections::HashSet;

use dq_core::{
    Claimed, DeadKind, DeadReason, FencingToken, Job, LeasedJob, QueueName, Renewal, Renewed,
    Timestamp, Want,
};
use rusqlite::{OptionalExtension, Row, params};

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
        let Some(State { q, paused: false, mut earliest }) = state(tx, &want.queue)? else {
            continue;
        };
        open.insert(q);
        let max = want.max.min(limit - jobs.len());
        if max > 0 && earliest.is_some_and(|due| due <= tx.now) {
            lease_due(tx, q, want, max, worker, &mut jobs)?;
            earliest = tx.earliest_due(q)?;
        }
        next_due = earlier(next_due, earliest);
    }
    next_due = earlier(next_due, first_lapse(tx, &open)?);
    Ok(Claimed { jobs, next_due, now: tx.now })
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

struct State {
    q: i64,
    paused: bool,
    earliest: Option<Timestamp>,
}

/// How a queue stands. Not from memory: any process may pause it.
fn state(tx: &Tx<'_>, queue: &QueueName) -> Outcome<Option<State>> {
    let read = |row: &Row<'_>| {
        let earliest: Option<i64> = row.get(2)?;
        let earliest = earliest.map(Timestamp::from_millis);
        Ok(State { q: row.get(0)?, paused: row.get(1)?, earliest })
    };
    Ok(tx.prepare(&tx.sql.queue_state)?.query_row([queue.as_str()], read).optional()?)
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
