//! Operate: pause and resume of a queue; replay, removal and purge of its jobs, in transactions
//! small enough that other callers can write in between.

use dq_core::{JobId, Operation, QueueName, Result, Timestamp};
use rusqlite::OptionalExtension;

use crate::error::{StoreError, StoreResult};
use crate::shared::StoreShared;
use crate::task::Weight;
use crate::write_tx::WriteTx;
use crate::writer_handle::WriterHandle;

/// Maximum number of jobs per transaction.
const STEP_JOBS: usize = 1_000;

/// A job's position in a listing: a time (see [`Listing`]) and its `seq`.
type ListPosition = (i64, i64);

/// Before every position.
const START: ListPosition = (i64::MIN, 0);

/// The jobs of a queue that an operation visits, in the order of a time and of `seq`.
#[derive(Debug, Clone, Copy)]
enum Listing {
    /// Waiting jobs, by due time.
    Waiting,
    /// Dead jobs, by time of death.
    Dead,
}

/// Result of one transaction of an operation.
#[derive(Debug, Clone, Copy)]
struct Step {
    affected: u64,
    /// Where the next step continues; `None` at the end.
    next: Option<ListPosition>,
}

/// Changes one job, given its queue id and position; returns whether it changed. Changes of dead
/// jobs use only the `seq` of the position.
trait Change:
    Fn(&mut WriteTx<'_>, i64, ListPosition) -> StoreResult<bool> + Copy + Send + 'static
{
}

impl<F: Fn(&mut WriteTx<'_>, i64, ListPosition) -> StoreResult<bool> + Copy + Send + 'static> Change
    for F
{
}

/// Executes the operations of [`dq_core::Backend::operate`] through the writer thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperationExecutor<'a> {
    pub(crate) shared: &'a StoreShared,
    pub(crate) writer: &'a WriterHandle,
}

impl OperationExecutor<'_> {
    /// Executes an operation; returns how many jobs or queues it changed.
    pub(crate) async fn execute(self, operation: Operation<'_>) -> Result<u64> {
        match operation {
            Operation::Replay { queue, jobs, due } => {
                let due = due.resolve(self.shared.clock.now());
                let replay = move |tx: &mut WriteTx<'_>, queue_id, position| {
                    replay(tx, queue_id, position, due)
                };
                self.change_dead("replay", queue, jobs, replay).await
            }
            Operation::Remove { queue, jobs } => {
                self.change_dead("remove", queue, jobs, remove).await
            }
            Operation::Pause { queue } => self.set_paused("pause", queue, true).await,
            Operation::Resume { queue } => {
                let affected = self.set_paused("resume", queue, false).await?;
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

    async fn set_paused(
        self,
        operation: &'static str,
        queue: &QueueName,
        paused: bool,
    ) -> Result<u64> {
        let queue = queue.clone();
        self.writer.submit(operation, Weight::ONE, move |tx| write_paused(tx, &queue, paused)).await
    }

    /// Changes these dead jobs of a queue; all of them if `jobs` is `None`.
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

    /// Changes all jobs of a listing, [`STEP_JOBS`] per transaction. Jobs that are added meanwhile
    /// are not visited, so they cannot keep the operation running.
    async fn change_all(
        self,
        operation: &'static str,
        listing: Listing,
        queue: &QueueName,
        change: impl Change,
    ) -> Result<u64> {
        let queue_name = queue.clone();
        let read_bound = move |tx: &mut WriteTx<'_>| listing_bound(tx, listing, &queue_name);
        let Some(bound) = self.writer.submit(operation, Weight::ONE, read_bound).await? else {
            return Ok(0);
        };
        let (mut affected, mut from) = (0, START);
        loop {
            let queue_name = queue.clone();
            let work =
                move |tx: &mut WriteTx<'_>| step(tx, listing, &queue_name, from, bound, change);
            let step = self.writer.submit(operation, Weight::items(STEP_JOBS), work).await?;
            affected += step.affected;
            match step.next {
                Some(next) => from = next,
                None => return Ok(affected),
            }
        }
    }
}

/// The bound up to which an operation visits the jobs of a listing: the last `seq` of the store for
/// waiting jobs, the latest time of death for dead ones. `None` if there are none.
fn listing_bound(
    tx: &mut WriteTx<'_>,
    listing: Listing,
    queue: &QueueName,
) -> StoreResult<Option<i64>> {
    let Some(queue_id) = tx.find_queue(queue)? else {
        return Ok(None);
    };
    match listing {
        Listing::Waiting => Ok(Some(tx.last_seq())),
        Listing::Dead => {
            let mut latest_died = tx.prepare(&tx.statements.latest_died)?;
            Ok(latest_died.query_row([queue_id], |row| row.get(0)).optional()?)
        }
    }
}

/// Changes the next [`STEP_JOBS`] jobs of a listing after a position.
fn step(
    tx: &mut WriteTx<'_>,
    listing: Listing,
    queue: &QueueName,
    (at, seq): ListPosition,
    bound: i64,
    change: impl Change,
) -> StoreResult<Step> {
    let Some(queue_id) = tx.find_queue(queue)? else {
        return Ok(Step { affected: 0, next: None });
    };
    let sql = match listing {
        Listing::Waiting => &tx.statements.due_after,
        Listing::Dead => &tx.statements.dead_after,
    };
    let positions: Vec<ListPosition> = tx
        .prepare(sql)?
        .query_map([queue_id, at, seq, bound, STEP_JOBS as i64], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let next = positions.last().copied().filter(|_| positions.len() == STEP_JOBS);
    let mut affected = 0;
    for position in positions {
        affected += u64::from(change(tx, queue_id, position)?);
    }
    Ok(Step { affected, next })
}

/// Changes the dead jobs with these ids; returns how many changed.
fn change_by_id(
    tx: &mut WriteTx<'_>,
    queue: &QueueName,
    ids: &[JobId],
    change: impl Change,
) -> StoreResult<u64> {
    let Some(queue_id) = tx.find_queue(queue)? else {
        return Ok(0);
    };
    let mut affected = 0;
    for id in ids {
        let dead_row: Option<(i64, i64, i64)> = tx
            .prepare(&tx.statements.dead_by_id)?
            .query_row([id.to_bytes()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        if let Some((seq, due, job_queue)) = dead_row
            && job_queue == queue_id
        {
            affected += u64::from(change(tx, queue_id, (due, seq))?);
        }
    }
    Ok(affected)
}

/// Moves a dead job back to its queue; `false` if another job with its key is live.
fn replay(
    tx: &mut WriteTx<'_>,
    queue_id: i64,
    (_, seq): ListPosition,
    due: Timestamp,
) -> StoreResult<bool> {
    if tx.prepare(&tx.statements.replay_job)?.execute([seq, due.as_millis()])? == 0 {
        return Ok(false);
    }
    tx.prepare(&tx.statements.remove_dead)?.execute([seq])?;
    tx.add_due(queue_id, due, seq)?;
    Ok(true)
}

/// Deletes a dead job.
fn remove(tx: &mut WriteTx<'_>, queue_id: i64, (_, seq): ListPosition) -> StoreResult<bool> {
    let removed = tx.prepare(&tx.statements.remove_dead)?.execute([seq])? == 1;
    tx.totals(queue_id).removed += u64::from(removed);
    Ok(removed)
}

/// Deletes a waiting job.
fn purge(tx: &mut WriteTx<'_>, queue_id: i64, (at, seq): ListPosition) -> StoreResult<bool> {
    tx.remove_due(queue_id, at, seq)?;
    tx.prepare(&tx.statements.remove_job)?.execute([seq])?;
    tx.totals(queue_id).removed += 1;
    Ok(true)
}

/// Pauses or resumes a queue; returns how many queues changed.
fn write_paused(tx: &mut WriteTx<'_>, queue: &QueueName, paused: bool) -> StoreResult<u64> {
    // A queue may be paused before its first job is scheduled.
    let queue_id = if paused { Some(tx.find_or_add_queue(queue)?) } else { tx.find_queue(queue)? };
    let Some(queue_id) = queue_id else {
        return Ok(0);
    };
    Ok(tx.prepare(&tx.statements.pause_queue)?.execute([queue_id, i64::from(paused)])? as u64)
}
