//! Claim: leases due jobs. If the caller stops waiting for the result, the leases are released at
//! once.

use std::collections::HashSet;

use dq_core::{
    Claimed, DeadKind, DeadReason, FencingToken, Job, LeasedJob, QueueName, Settlement, Timestamp,
    Verdict, Want,
};
use rusqlite::{OptionalExtension, Row, params};

use crate::error::StoreResult;
use crate::row;
use crate::settle::{move_to_dead, settle};
use crate::task::{BackgroundWrites, Weight};
use crate::write_tx::WriteTx;

/// Leases up to `limit` due jobs of the wanted queues. Writes nothing if no job is due. Lapsed
/// leases were removed when the transaction began.
pub(crate) fn claim(
    tx: &mut WriteTx<'_>,
    wants: &[Want],
    limit: usize,
    worker: &str,
) -> StoreResult<Claimed> {
    let mut jobs = Vec::new();
    let mut next_due = None;
    let mut active_queues = HashSet::new();
    for want in wants {
        let Some(QueueState { queue_id, paused: false, mut earliest_due }) =
            queue_state(tx, &want.queue)?
        else {
            continue;
        };
        active_queues.insert(queue_id);
        let max = want.max.min(limit - jobs.len());
        if max > 0 && earliest_due.is_some_and(|due| due <= tx.now) {
            lease_due(tx, queue_id, want, max, worker, &mut jobs)?;
            earliest_due = tx.earliest_due(queue_id)?;
        }
        next_due = earlier(next_due, earliest_due);
    }
    next_due = earlier(next_due, next_lapse(tx, &active_queues)?);
    Ok(Claimed { jobs, next_due, now: tx.now })
}

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}

struct QueueState {
    queue_id: i64,
    paused: bool,
    earliest_due: Option<Timestamp>,
}

/// Reads the state of a queue; `None` if the queue does not exist. It is not cached, since any
/// process may pause the queue.
fn queue_state(tx: &WriteTx<'_>, queue: &QueueName) -> StoreResult<Option<QueueState>> {
    let read = |row: &Row<'_>| {
        let earliest_due: Option<i64> = row.get(2)?;
        let earliest_due = earliest_due.map(Timestamp::from_millis);
        Ok(QueueState { queue_id: row.get(0)?, paused: row.get(1)?, earliest_due })
    };
    Ok(tx.prepare(&tx.statements.queue_state)?.query_row([queue.as_str()], read).optional()?)
}

/// Leases up to `max` due jobs of one queue and appends them to `leased`. Jobs with invalid rows
/// are quarantined: they become dead with [`DeadKind::Quarantined`].
fn lease_due(
    tx: &mut WriteTx<'_>,
    queue_id: i64,
    want: &Want,
    max: usize,
    worker: &str,
    leased: &mut Vec<LeasedJob>,
) -> StoreResult<()> {
    let due = read_due(tx, queue_id, &want.queue, max)?;
    let Some((seq, at, _)) = due.last() else {
        return Ok(());
    };
    // The jobs read are the first of the queue, so one range covers exactly them.
    tx.prepare(&tx.statements.remove_due_until)?.execute([queue_id, *at, *seq])?;
    let leased_until = tx.now + want.lease_for;
    for (seq, _, job) in due {
        match job {
            Ok(mut job) => {
                let token = tx.next_token();
                let until = leased_until.as_millis();
                tx.prepare(&tx.statements.add_lease)?
                    .execute(params![seq, queue_id, until, token, worker])?;
                job.deliveries = job.deliveries.saturating_add(1);
                let token = FencingToken(token.unsigned_abs());
                leased.push(LeasedJob { job, token, leased_until });
            }
            Err(message) => {
                let reason = DeadReason::new(DeadKind::Quarantined, message);
                move_to_dead(tx, seq, &reason, 0, 0)?;
            }
        }
    }
    Ok(())
}

/// `seq`, due time, and the job or the reason why its row is invalid.
type DueJob = (i64, i64, Result<Job, String>);

/// The first due jobs of a queue, at most `max`.
fn read_due(
    tx: &WriteTx<'_>,
    queue_id: i64,
    queue: &QueueName,
    max: usize,
) -> StoreResult<Vec<DueJob>> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let mut statement = tx.prepare(&tx.statements.due_jobs)?;
    let due = statement
        .query_map([queue_id, tx.now.as_millis(), max], |row| {
            let (seq, at) = row::position(row)?;
            Ok((seq, at, row::job(row, queue)))
        })?
        .collect::<rusqlite::Result<_>>()?;
    Ok(due)
}

/// When the next lease of these queues lapses. Reads the leases in the order of their ends up to
/// the first match; there are only as many as running handlers.
fn next_lapse(tx: &WriteTx<'_>, queues: &HashSet<i64>) -> StoreResult<Option<Timestamp>> {
    let mut statement = tx.prepare(&tx.statements.lease_ends)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if queues.contains(&row.get(1)?) {
            return Ok(Some(Timestamp::from_millis(row.get(0)?)));
        }
    }
    Ok(None)
}

/// The leases of a committed claim on their way to the caller. If the caller's future is dropped
/// before it receives them, they are released at once, so that the jobs need not wait until the
/// leases lapse.
///
/// It must be created after the commit: the tokens of a transaction that was rolled back are issued
/// again, so returning its leases would end those of another caller.
#[derive(Debug)]
pub(crate) struct ClaimGuard {
    claimed: Claimed,
    background_writes: BackgroundWrites,
}

impl ClaimGuard {
    pub(crate) const fn new(claimed: Claimed, background_writes: BackgroundWrites) -> Self {
        Self { claimed, background_writes }
    }

    /// Passes the leases to the caller.
    pub(crate) fn into_claimed(mut self) -> Claimed {
        let Claimed { next_due, now, .. } = self.claimed;
        Claimed { jobs: std::mem::take(&mut self.claimed.jobs), next_due, now }
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        if self.claimed.jobs.is_empty() {
            return;
        }
        let release = Verdict::Release { started: false };
        let releases: Vec<Settlement> = self
            .claimed
            .jobs
            .iter()
            .map(|job| Settlement { lease: job.lease(), verdict: release.clone() })
            .collect();
        self.background_writes.send(Weight::items(releases.len()), move |tx| {
            releases.iter().try_for_each(|release| settle(tx, release).map(drop))
        });
    }
}
