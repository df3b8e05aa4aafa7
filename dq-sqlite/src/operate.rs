//! Operate: the operations of an operator, in transactions small enough that other callers can write
//! in between.

use dq_core::{JobId, Operation, QueueName, Result, Timestamp};
use rusqlite::OptionalExtension;

use crate::error::{StoreError, StoreResult};
use crate::shared::StoreShared;
use crate::task::Weight;
use crate::write_tx::WriteTx;
use crate::writer_handle::WriterHandle;

/// Jobs per transaction.
const STEP_JOBS: usize = 1_000;

/// A job's position in a listing: time and `seq`.
type ListPosition = (i64, i64);

/// Before every position.
const START: ListPosition = (i64::MIN, 0);

/// The jobs of a queue that an operation visits. Only jobs that exist when the operation begins are
/// visited, so jobs that are added meanwhile cannot keep it running.
#[derive(Debug, Clone, Copy)]
enum Listing {
    Waiting,
    Dead,
}

/// Result of one transaction of an operation.
#[derive(Debug, Clone, Copy)]
struct Step {
    affected: u64,
    /// Where the next step continues; `None` at the end.
    next: Option<ListPosition>,
}

/// Changes one job, given its queue id and position; returns whether it changed.
trait Change:
    Fn(&mut WriteTx<'_>, i64, ListPosition) -> StoreResult<bool> + Copy + Send + 'static
{
}

impl<F: Fn(&mut WriteTx<'_>, i64, ListPosition) -> StoreResult<bool> + Copy + Send + 'static> Change
    for F
{
}

/// Executes operations through the writer thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operator<'a> {
    pub(crate) shared: &'a StoreShared,
    pub(crate) writer: &'a WriterHandle,
}

impl Operator<'_> {
    /// Executes an operation; returns how many jobs or queues it changed.
    pub(crate) async fn operate(self, operation: Operation<'_>) -> Result<u64> {
        match operation {
            Operation::Replay { queue, jobs, due } => {
                let due = due.resolve(self.shared.clock.now());
                let replay = move |tx: &mut WriteTx<'_>, q, position| replay(tx, q, position, due);
                self.change_dead("replay", queue, jobs, replay).await
            }
            Operation::Remove { queue, jobs } => {
                self.change_dead("remove", queue, jobs, remove).await
            }
            Operation::Pause { queue } => self.pause("pause", queue, true).await,
            Operation::Resume { queue } => {
                let affected = self.pause("resume", queue, false).await?;
                let now = self.shared.clock.now();
                self.shared.listeners.wake(queue, now);
                Ok(affected)
            }
            Operation::Purge { queue } => {
                let waiting = self.change_all("purge", Listing::Waiting, queue, purge).await?;
                Ok(waiting + self.change_all("purge", Listing::Dead, queue, remove).await?)
            }
            operation => {
                Err(StoreError::unsupported(&operation)
                    .into_error("operate", &self.shared.config.path))
            }
        }
    }

    async fn pause(self, operation: &'static str, queue: &QueueName, paused: bool) -> Result<u64> {
        let queue = queue.clone();
        self.writer.submit(operation, Weight::ONE, move |tx| set_paused(tx, &queue, paused)).await
    }

    async fn change_dead(
        self,
        operation: &'static str,
        queue: &QueueName,
        jobs: Option<&[JobId]>,
        change: impl Change,
    ) -> Result<u64> {
        let Some(jobs) = jobs else {
            return self.change_all(operation, Listing::Dead, queue, change).await;
        };
        let mut affected = 0;
        for chunk in jobs.chunks(STEP_JOBS) {
            let (queue, ids) = (queue.clone(), chunk.to_vec());
            let work = move |tx: &mut WriteTx<'_>| change_by_id(tx, &queue, &ids, change);
            affected += self.writer.submit(operation, Weight::items(chunk.len()), work).await?;
        }
        Ok(affected)
    }

    /// Changes all jobs of a listing, `STEP_JOBS` per transaction.
    async fn change_all(
        self,
        operation: &'static str,
        listing: Listing,
        queue: &QueueName,
        change: impl Change,
    ) -> Result<u64> {
        let queue_name = queue.clone();
        let end = move |tx: &mut WriteTx<'_>| listing_end(tx, listing, &queue_name);
        let Some(end) = self.writer.submit(operation, Weight::ONE, end).await? else {
            return Ok(0);
        };
        let (mut affected, mut from) = (0, START);
        loop {
            let queue_name = queue.clone();
            let work =
                move |tx: &mut WriteTx<'_>| step(tx, listing, &queue_name, from, end, change);
            let step = self.writer.submit(operation, Weight::items(STEP_JOBS), work).await?;
            affected += step.affected;
            match step.next {
                Some(next) => from = next,
                None => return Ok(affected),
            }
        }
    }
}

/// The largest `seq` (waiting) or time of death (dead) of a listing; `None` if it is empty.
fn listing_end(
    tx: &mut WriteTx<'_>,
    listing: Listing,
    queue: &QueueName,
) -> StoreResult<Option<i64>> {
    let Some(q) = tx.find_queue(queue)? else {
        return Ok(None);
    };
    match listing {
        Listing::Waiting => Ok(Some(tx.last_seq())),
        Listing::Dead => {
            let mut latest_died = tx.prepare(&tx.statements.latest_died)?;
            Ok(latest_died.query_row([q], |row| row.get(0)).optional()?)
        }
    }
}

fn step(
    tx: &mut WriteTx<'_>,
    listing: Listing,
    queue: &QueueName,
    (at, seq): ListPosition,
    end: i64,
    change: impl Change,
) -> StoreResult<Step> {
    let Some(q) = tx.find_queue(queue)? else {
        return Ok(Step { affected: 0, next: None });
    };
    let sql = match listing {
        Listing::Waiting => &tx.statements.due_after,
        Listing::Dead => &tx.statements.dead_after,
    };
    let positions: Vec<ListPosition> = tx
        .prepare(sql)?
        .query_map([q, at, seq, end, STEP_JOBS as i64], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let next = positions.last().copied().filter(|_| positions.len() == STEP_JOBS);
    let mut affected = 0;
    for position in positions {
        affected += u64::from(change(tx, q, position)?);
    }
    Ok(Step { affected, next })
}

fn change_by_id(
    tx: &mut WriteTx<'_>,
    queue: &QueueName,
    ids: &[JobId],
    change: impl Change,
) -> StoreResult<u64> {
    let Some(q) = tx.find_queue(queue)? else {
        return Ok(0);
    };
    let mut affected = 0;
    for id in ids {
        let dead_row: Option<(i64, i64, i64)> = tx
            .prepare(&tx.statements.dead_by_id)?
            .query_row([id.to_bytes()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        if let Some((seq, due, job_queue)) = dead_row
            && job_queue == q
        {
            affected += u64::from(change(tx, q, (due, seq))?);
        }
    }
    Ok(affected)
}

/// Moves a dead job back to its queue; `false` if another job with its key is live.
fn replay(
    tx: &mut WriteTx<'_>,
    q: i64,
    (_, seq): ListPosition,
    due: Timestamp,
) -> StoreResult<bool> {
    if tx.prepare(&tx.statements.replay_job)?.execute([seq, due.as_millis()])? == 0 {
        return Ok(false);
    }
    tx.prepare(&tx.statements.remove_dead)?.execute([seq])?;
    tx.add_due(q, due, seq)?;
    Ok(true)
}

/// Deletes a dead job.
fn remove(tx: &mut WriteTx<'_>, q: i64, (_, seq): ListPosition) -> StoreResult<bool> {
    let removed = tx.prepare(&tx.statements.remove_dead)?.execute([seq])? == 1;
    tx.totals(q).removed += u64::from(removed);
    Ok(removed)
}

/// Deletes a waiting job.
fn purge(tx: &mut WriteTx<'_>, q: i64, (at, seq): ListPosition) -> StoreResult<bool> {
    tx.remove_due(q, at, seq)?;
    tx.prepare(&tx.statements.remove_job)?.execute([seq])?;
    tx.totals(q).removed += 1;
    Ok(true)
}

/// Pauses or resumes a queue; returns how many queues changed.
fn set_paused(tx: &mut WriteTx<'_>, queue: &QueueName, paused: bool) -> StoreResult<u64> {
    // A queue may be paused before its first job is scheduled.
    let q = if paused { Some(tx.find_or_add_queue(queue)?) } else { tx.find_queue(queue)? };
    let Some(q) = q else {
        return Ok(0);
    };
    Ok(tx.prepare(&tx.statements.pause_queue)?.execute([q, i64::from(paused)])? as u64)
}
