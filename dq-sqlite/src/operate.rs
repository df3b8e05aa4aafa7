//! What operators do, in steps small enough to let others in between.

use dq_core::{JobId, Operation, QueueName, Result, Timestamp};
use rusqlite::OptionalExtension;

use crate::backend::SqliteBackend;
use crate::error::{Failure, Outcome};
use crate::submit::Weight;
use crate::tx::Tx;

/// Jobs per transaction.
const STEP: usize = 1_000;

/// A job's place in a listing: time and number.
type Place = (i64, i64);

/// Before every place.
const START: Place = (i64::MIN, 0);

/// Which jobs of a queue a walk visits. Both walks end at what was there when they began, so that
/// jobs that come or die meanwhile do not keep them going.
#[derive(Debug, Clone, Copy)]
enum Listing {
    Waiting,
    Dead,
}

/// One step of a walk.
#[derive(Debug, Clone, Copy)]
struct Step {
    affected: u64,
    /// Where to go on; `None` at the end.
    next: Option<Place>,
}

/// What is done to one job: queue, place in the listing; `true` if it was.
trait Change: Fn(&mut Tx<'_>, i64, Place) -> Outcome<bool> + Copy + Send + 'static {}

impl<F: Fn(&mut Tx<'_>, i64, Place) -> Outcome<bool> + Copy + Send + 'static> Change for F {}

impl SqliteBackend {
    /// Does what an operator wants; how many jobs or queues changed.
    pub(crate) async fn intervene(&self, operation: Operation<'_>) -> Result<u64> {
        match operation {
            Operation::Replay { queue, jobs, due } => {
                let due = due.resolve(self.shared.clock.now());
                let replay = move |tx: &mut Tx<'_>, q, place| replay(tx, q, place, due);
                self.change_dead("replay", queue, jobs, replay).await
            }
            Operation::Remove { queue, jobs } => {
                self.change_dead("remove", queue, jobs, remove).await
            }
            Operation::Pause { queue } => self.pause("pause", queue, true).await,
            Operation::Resume { queue } => {
                let affected = self.pause("resume", queue, false).await?;
                let now = self.shared.clock.now();
                self.shared.switchboard.send(vec![(queue.clone(), now)]);
                Ok(affected)
            }
            Operation::Purge { queue } => {
                let waiting = self.walk("purge", Listing::Waiting, queue, purge).await?;
                Ok(waiting + self.walk("purge", Listing::Dead, queue, remove).await?)
            }
            operation => {
                Err(Failure::unknown(&operation).into_error("operate", &self.shared.config.path))
            }
        }
    }

    async fn pause(&self, name: &'static str, queue: &QueueName, paused: bool) -> Result<u64> {
        let queue = queue.clone();
        self.submitter.submit(name, Weight::ONE, move |tx| pause(tx, &queue, paused)).await
    }

    async fn change_dead(
        &self,
        name: &'static str,
        queue: &QueueName,
        jobs: Option<&[JobId]>,
        change: impl Change,
    ) -> Result<u64> {
        let Some(jobs) = jobs else {
            return self.walk(name, Listing::Dead, queue, change).await;
        };
        let mut affected = 0;
        for chunk in jobs.chunks(STEP) {
            let (queue, ids) = (queue.clone(), chunk.to_vec());
            let work = move |tx: &mut Tx<'_>| change_these(tx, &queue, &ids, change);
            affected += self.submitter.submit(name, Weight::items(chunk.len()), work).await?;
        }
        Ok(affected)
    }

    /// Changes every job of a listing, some per transaction.
    async fn walk(
        &self,
        name: &'static str,
        listing: Listing,
        queue: &QueueName,
        change: impl Change,
    ) -> Result<u64> {
        let of = queue.clone();
        let end = move |tx: &mut Tx<'_>| end(tx, listing, &of);
        let Some(end) = self.submitter.submit(name, Weight::ONE, end).await? else {
            return Ok(0);
        };
        let (mut affected, mut from) = (0, START);
        loop {
            let of = queue.clone();
            let work = move |tx: &mut Tx<'_>| step(tx, listing, &of, from, end, change);
            let step = self.submitter.submit(name, Weight::items(STEP), work).await?;
            affected += step.affected;
            match step.next {
                Some(next) => from = next,
                None => return Ok(affected),
            }
        }
    }
}

/// Where a walk that begins now ends; `None` if there is nothing to visit.
fn end(tx: &mut Tx<'_>, listing: Listing, queue: &QueueName) -> Outcome<Option<i64>> {
    let Some(q) = tx.find_queue(queue)? else {
        return Ok(None);
    };
    match listing {
        Listing::Waiting => Ok(Some(tx.last_seq())),
        Listing::Dead => {
            let mut latest = tx.prepare(&tx.sql.latest_death)?;
            Ok(latest.query_row([q], |row| row.get(0)).optional()?)
        }
    }
}

fn step(
    tx: &mut Tx<'_>,
    listing: Listing,
    queue: &QueueName,
    (at, seq): Place,
    end: i64,
    change: impl Change,
) -> Outcome<Step> {
    let Some(q) = tx.find_queue(queue)? else {
        return Ok(Step { affected: 0, next: None });
    };
    let sql = match listing {
        Listing::Waiting => &tx.sql.due_after,
        Listing::Dead => &tx.sql.dead_after,
    };
    let places: Vec<Place> = tx
        .prepare(sql)?
        .query_map([q, at, seq, end, STEP as i64], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let next = places.last().copied().filter(|_| places.len() == STEP);
    let mut affected = 0;
    for place in places {
        affected += u64::from(change(tx, q, place)?);
    }
    Ok(Step { affected, next })
}

fn change_these(
    tx: &mut Tx<'_>,
    queue: &QueueName,
    ids: &[JobId],
    change: impl Change,
) -> Outcome<u64> {
    let Some(q) = tx.find_queue(queue)? else {
        return Ok(0);
    };
    let mut affected = 0;
    for id in ids {
        let found: Option<(i64, i64, i64)> = tx
            .prepare(&tx.sql.dead_by_id)?
            .query_row([id.to_bytes()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        if let Some((seq, due, of)) = found
            && of == q
        {
            affected += u64::from(change(tx, q, (due, seq))?);
        }
    }
    Ok(affected)
}

/// Makes a dead job live again; `false` if its key is live.
fn replay(tx: &mut Tx<'_>, q: i64, (_, seq): Place, due: Timestamp) -> Outcome<bool> {
    if tx.prepare(&tx.sql.revive_job)?.execute([seq, due.as_millis()])? == 0 {
        return Ok(false);
    }
    tx.prepare(&tx.sql.remove_dead)?.execute([seq])?;
    tx.wait(q, due, seq)?;
    Ok(true)
}

/// Removes a dead job for good.
fn remove(tx: &mut Tx<'_>, q: i64, (_, seq): Place) -> Outcome<bool> {
    let removed = tx.prepare(&tx.sql.remove_dead)?.execute([seq])? == 1;
    tx.totals(q).removed += u64::from(removed);
    Ok(removed)
}

/// Removes a waiting job for good.
fn purge(tx: &mut Tx<'_>, q: i64, (at, seq): Place) -> Outcome<bool> {
    tx.unwait(q, at, seq)?;
    tx.prepare(&tx.sql.remove_job)?.execute([seq])?;
    tx.totals(q).removed += 1;
    Ok(true)
}

/// Stops or resumes claims of a queue; how many queues changed.
fn pause(tx: &mut Tx<'_>, queue: &QueueName, paused: bool) -> Outcome<u64> {
    // A queue may be paused before its first job comes.
    let q = if paused { Some(tx.queue(queue)?) } else { tx.find_queue(queue)? };
    let Some(q) = q else {
        return Ok(0);
    };
    Ok(tx.prepare(&tx.sql.pause_queue)?.execute([q, i64::from(paused)])? as u64)
}
