//! Pauses and resumes queues; replays, removes and purges jobs in short transactions with pauses.
//!
//! Callers in this process get their turn anyway. Other processes need the pauses: SQLite's waiters
//! sleep and retry, and hardly ever find the write lock free.

use std::time::{Duration, Instant};

use dq_core::{Ending, JobId, OperateReport, Operation, QueueName, Result, Timestamp};

use crate::backend::SqliteBackend;
use crate::end::{JobEnd, JobTable, end_job};
use crate::error::{StoreError, StoreResult};
use crate::task::{Access, Weight};
use crate::write_tx::WriteTx;

/// Few enough for some milliseconds.
const STEP_JOBS: usize = 500;

/// Per call, so that the call ends soon; callers repeat it while jobs remain.
const PURGE_STEPS: usize = 2;

const MIN_PAUSE: Duration = Duration::from_millis(1);

const MAX_PAUSE: Duration = Duration::from_millis(50);

impl SqliteBackend {
    pub(crate) async fn execute(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let affected = match operation {
            Operation::Replay { queue, jobs, due } => {
                let due = due.resolve(self.shared.clock.now());
                self.change_dead("replay", queue, jobs, Some(due)).await?
            }
            Operation::Remove { queue, jobs } => {
                self.change_dead("remove", queue, jobs, None).await?
            }
            Operation::Pause { queue } => self.set_paused("pause", queue, true).await?,
            Operation::Resume { queue } => {
                let affected = self.set_paused("resume", queue, false).await?;
                self.shared.listeners.wake(queue, self.shared.clock.now());
                affected
            }
            Operation::Purge { queue } => return self.purge(queue).await,
            Operation::DeclareFlow { .. } | Operation::OverrideFlow { .. } => {
                return self.set_flow(operation).await;
            }
            operation => {
                let error = StoreError::unsupported(&operation);
                return Err(error.into_error("operate", &self.shared.config.path));
            }
        };
        Ok(OperateReport::new(affected))
    }

    async fn set_paused(
        &self,
        operation: &'static str,
        queue: &QueueName,
        paused: bool,
    ) -> Result<u64> {
        let queue = queue.clone();
        let work = move |tx: &mut WriteTx<'_>| write_paused(tx, &queue, paused);
        self.writer.submit(operation, Access::Write, Weight::ONE, work).await
    }

    /// Replays dead jobs at `replay_at`, or removes them.
    async fn change_dead(
        &self,
        operation: &'static str,
        queue: &QueueName,
        jobs: &[JobId],
        replay_at: Option<Timestamp>,
    ) -> Result<u64> {
        let mut affected = 0;
        let mut chunks = jobs.chunks(STEP_JOBS).peekable();
        while let Some(chunk) = chunks.next() {
            let start = Instant::now();
            let (queue, ids) = (queue.clone(), chunk.to_vec());
            let work = move |tx: &mut WriteTx<'_>| change_by_id(tx, &queue, &ids, replay_at);
            let weight = Weight::items(chunk.len());
            affected += self.writer.submit(operation, Access::Write, weight, work).await?;
            if chunks.peek().is_some() {
                pause_after(start).await;
            }
        }
        Ok(affected)
    }

    async fn purge(&self, queue: &QueueName) -> Result<OperateReport> {
        let mut report = OperateReport::default();
        for _ in 0..PURGE_STEPS {
            let start = Instant::now();
            let queue = queue.clone();
            let work = move |tx: &mut WriteTx<'_>| purge_step(tx, &queue);
            let weight = Weight::items(STEP_JOBS);
            let step = self.writer.submit("purge", Access::Write, weight, work).await?;
            report.affected += step.affected;
            report.more = step.more;
            if !step.more {
                break;
            }
            pause_after(start).await;
        }
        Ok(report)
    }
}

/// Sleeps about as long as the transaction took: the write lock is free half the time.
async fn pause_after(start: Instant) {
    let pause = start.elapsed().clamp(MIN_PAUSE, MAX_PAUSE);
    // The runtime may have no timer. Fails only if the runtime shuts down.
    let _ = tokio::task::spawn_blocking(move || std::thread::sleep(pause)).await;
}

/// Waiting jobs first, then dead ones.
fn purge_step(tx: &mut WriteTx<'_>, queue: &QueueName) -> StoreResult<OperateReport> {
    let mut report = OperateReport::default();
    let Some(queue_id) = tx.find_queue(queue)? else {
        return Ok(report);
    };
    tx.unpark_all(queue_id)?;
    // One extra shows whether jobs remain.
    let limit = STEP_JOBS + 1;
    let waiting: Vec<(i64, i64)> =
        tx.all(&tx.statements.first_due_entries, [queue_id, limit as i64], |row| row.try_into())?;
    let dead_limit = (limit - waiting.len()) as i64;
    let dead: Vec<i64> =
        tx.all(&tx.statements.first_dead, [queue_id, dead_limit], |row| row.get(0))?;
    report.more = waiting.len() + dead.len() > STEP_JOBS;
    let dead_left = STEP_JOBS.saturating_sub(waiting.len());
    for (at, seq) in waiting.into_iter().take(STEP_JOBS) {
        tx.remove_due(queue_id, at, seq)?;
        let end = JobEnd::unleased(Ending::Removed);
        // If another program has deleted the job, only its entry is left.
        report.affected += u64::from(end_job(tx, queue, queue_id, seq, JobTable::Live, end)?);
    }
    for seq in dead.into_iter().take(dead_left) {
        report.affected += u64::from(remove(tx, queue, queue_id, seq)?);
    }
    Ok(report)
}

fn change_by_id(
    tx: &mut WriteTx<'_>,
    queue: &QueueName,
    ids: &[JobId],
    replay_at: Option<Timestamp>,
) -> StoreResult<u64> {
    let Some(queue_id) = tx.find_queue(queue)? else {
        return Ok(0);
    };
    let mut affected = 0;
    for id in ids {
        let dead: Option<(i64, i64)> =
            tx.find(&tx.statements.dead_by_id, [id.to_bytes()], |row| {
                Ok((row.get(0)?, row.get(2)?))
            })?;
        let Some((seq, _)) = dead.filter(|(_, job_queue)| *job_queue == queue_id) else {
            continue;
        };
        let changed = match replay_at {
            Some(due) => replay(tx, queue_id, seq, due)?,
            None => remove(tx, queue, queue_id, seq)?,
        };
        affected += u64::from(changed);
    }
    Ok(affected)
}

/// Returns `false` if another live job has the id or key.
fn replay(tx: &mut WriteTx<'_>, queue_id: i64, seq: i64, due: Timestamp) -> StoreResult<bool> {
    if tx.execute(&tx.statements.replay_job, [seq, due.as_millis()])? == 0 {
        return Ok(false);
    }
    tx.execute(&tx.statements.remove_dead, [seq])?;
    tx.clear_error(seq)?;
    tx.add_due(queue_id, due, seq)?;
    Ok(true)
}

fn remove(tx: &mut WriteTx<'_>, queue: &QueueName, queue_id: i64, seq: i64) -> StoreResult<bool> {
    end_job(tx, queue, queue_id, seq, JobTable::Dead, JobEnd::unleased(Ending::Removed))
}

fn write_paused(tx: &mut WriteTx<'_>, queue: &QueueName, paused: bool) -> StoreResult<u64> {
    // A queue may be paused before its first job is scheduled.
    let queue_id = if paused { Some(tx.find_or_add_queue(queue)?) } else { tx.find_queue(queue)? };
    let Some(queue_id) = queue_id else {
        return Ok(0);
    };
    let was_closed = !paused && tx.open_queue(queue_id)?;
    tx.mark_changed(queue_id);
    let changed = tx.execute(&tx.statements.pause_queue, [queue_id, i64::from(paused)])? > 0;
    Ok(u64::from(changed || was_closed))
}
