//! The store that is produced to and those that are drained, as one.
//!
//! A call on a single store is atomic; over several it is one call after the other. Without drained
//! stores nothing is added to the one call.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::single;
use crate::backend::{
    Backend, Cancelled, Checked, OperateReport, Operation, QueueStats, Receipt, Reschedule,
    Rescheduled, Scheduled, Totals,
};
use crate::error::{ErrorKind, Result};
use crate::model::{JobRef, JobState, JobView, NewJob, QueueName};

/// How often a call is repeated of which it is not known whether it took effect.
const REPEATS: usize = 3;

/// All stores of a client.
#[derive(Debug)]
pub(crate) struct Stores {
    pub(crate) main: Arc<Checked>,
    pub(crate) drain: Vec<Arc<Checked>>,
}

impl Stores {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Checked>> {
        std::iter::once(&self.main).chain(&self.drain)
    }

    /// Schedules in the main store what no live job of a drained one stands in the way of.
    pub(super) async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        if self.drain.is_empty() || jobs.iter().all(|job| job.key.is_none()) {
            return self.schedule_in_main(jobs).await;
        }
        let mut answers = Vec::with_capacity(jobs.len());
        for job in jobs {
            let old = self.make_room(&job).await?;
            let answer = match old {
                Room::Taken(answer) => answer,
                Room::Free => single(self.schedule_in_main(vec![job]).await?)?,
                Room::Cleared => match single(self.schedule_in_main(vec![job]).await?)? {
                    Scheduled::Created(receipt) => Scheduled::Replaced(receipt),
                    answer => answer,
                },
            };
            answers.push(answer);
        }
        Ok(answers)
    }

    /// A call whose outcome is unknown is repeated: the ids make that harmless.
    async fn schedule_in_main(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        if !self.main.capabilities().durable {
            return self.main.schedule(jobs).await;
        }
        for _ in 1..REPEATS {
            match self.main.schedule(jobs.clone()).await {
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                    tracing::warn!(%error, "scheduling once more with the same ids");
                }
                answer => return answer,
            }
        }
        self.main.schedule(jobs).await
    }

    /// Settles the conflict of a new job with a live one of the same key in a drained store.
    async fn make_room(&self, job: &NewJob) -> Result<Room> {
        let Some(key) = &job.key else { return Ok(Room::Free) };
        let rival = JobRef::new(job.queue.clone(), key.clone());
        for store in &self.drain {
            let Some(JobView { job: old, state, .. }) = store.get(&rival).await? else { continue };
            let receipt = Receipt { id: old.id, due: old.due };
            let due = job.due.resolve(store.now().await?);
            match state {
                JobState::Dead => continue,
                JobState::Running => return Ok(Room::Taken(Scheduled::AlreadyRunning(receipt))),
                _ if !job.on_conflict.replaces(old.due, due) => {
                    return Ok(Room::Taken(Scheduled::Kept(receipt)));
                }
                _ => {}
            }
            return Ok(match single(store.cancel(&[rival]).await?)? {
                Cancelled::AlreadyRunning => Room::Taken(Scheduled::AlreadyRunning(receipt)),
                Cancelled::NotFound => Room::Free,
                Cancelled::Cancelled | Cancelled::Requested => Room::Cleared,
            });
        }
        Ok(Room::Free)
    }

    /// Cancels in every store, as a key may be live in several.
    pub(super) async fn cancel(&self, job: JobRef) -> Result<Cancelled> {
        let job = [job];
        let mut said = Cancelled::NotFound;
        for store in self.iter() {
            let answer = single(store.cancel(&job).await?)?;
            said = match (said, answer) {
                // Whatever still runs is what the caller has to know first.
                (Cancelled::AlreadyRunning, _) | (_, Cancelled::AlreadyRunning) => {
                    Cancelled::AlreadyRunning
                }
                (Cancelled::Requested, _) | (_, Cancelled::Requested) => Cancelled::Requested,
                (Cancelled::Cancelled, _) | (_, Cancelled::Cancelled) => Cancelled::Cancelled,
                (Cancelled::NotFound, Cancelled::NotFound) => Cancelled::NotFound,
            };
        }
        Ok(said)
    }

    /// Moves the job in the first store that has it.
    pub(super) async fn reschedule(&self, wish: Reschedule) -> Result<Rescheduled> {
        let wish = [wish];
        for store in self.iter() {
            match single(store.reschedule(&wish).await?)? {
                Rescheduled::NotFound => {}
                answer => return Ok(answer),
            }
        }
        Ok(Rescheduled::NotFound)
    }

    /// The job in the first store that has it.
    pub(super) async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        for store in self.iter() {
            if let Some(found) = store.get(job).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Counts over all stores, by name of the queue or in the order asked.
    pub(super) async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        if self.drain.is_empty() {
            return self.main.stats(queues).await;
        }
        let mut sums: BTreeMap<QueueName, QueueStats> = BTreeMap::new();
        for store in self.iter() {
            for stats in store.stats(queues).await? {
                match sums.get_mut(&stats.queue) {
                    Some(sum) => add(sum, &stats),
                    None => {
                        sums.insert(stats.queue.clone(), stats);
                    }
                }
            }
        }
        if queues.is_empty() {
            return Ok(sums.into_values().collect());
        }
        Ok(queues.iter().filter_map(|queue| sums.get(queue).cloned()).collect())
    }

    /// Operates on every store.
    pub(super) async fn operate(&self, operation: Operation<'_>) -> Result<u64> {
        let mut sum = 0;
        for store in self.iter() {
            let OperateReport { affected } = store.operate(operation).await?;
            sum += affected;
        }
        Ok(sum)
    }
}

enum Room {
    /// No drained store has a live job with the key.
    Free,
    /// One had; it is cancelled.
    Cleared,
    /// One has, and it stays.
    Taken(Scheduled),
}

fn add(sum: &mut QueueStats, more: &QueueStats) {
    sum.scheduled += more.scheduled;
    sum.ready += more.ready;
    sum.running += more.running;
    sum.dead += more.dead;
    sum.paused |= more.paused;
    sum.next_due = sum.next_due.into_iter().chain(more.next_due).min();
    sum.totals = sum.totals.zip(more.totals).map(|(a, b)| Totals {
        created: a.created + b.created,
        done: a.done + b.done,
        skipped: a.skipped + b.skipped,
        cancelled: a.cancelled + b.cancelled,
        replaced: a.replaced + b.replaced,
        removed: a.removed + b.removed,
    });
}
