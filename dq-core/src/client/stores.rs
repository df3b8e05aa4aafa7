//! Calls on the main store and the drained stores together.
//!
//! A *drained* store is one that is being drained (`[[drain]]`): it receives no new jobs, and its
//! jobs still run and can be changed. A call on one store is atomic; on several it is a sequence of
//! calls. Without drained stores it is the single call on the main store.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backend::{
    Backend, Cancelled, Checked, OperateReport, Operation, QueueStats, Receipt, Reschedule,
    Rescheduled, Scheduled, Totals,
};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{JobRef, JobState, JobView, NewJob, QueueName};

/// Maximum number of attempts of a schedule call whose outcome is unknown.
const SCHEDULE_ATTEMPTS: usize = 3;

/// All stores of a client.
#[derive(Debug)]
pub(crate) struct Stores {
    /// Receives new jobs.
    pub(crate) main: Arc<Checked>,
    /// Receive no new jobs.
    pub(crate) drain: Vec<Arc<Checked>>,
}

impl Stores {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Checked>> {
        std::iter::once(&self.main).chain(&self.drain)
    }

    /// Schedules in the main store the jobs whose keys do not conflict with a live job of a drained
    /// store.
    pub(super) async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        if self.drain.is_empty() || jobs.iter().all(|job| job.key.is_none()) {
            return self.schedule_in_main(jobs).await;
        }
        let mut results = Vec::with_capacity(jobs.len());
        for job in jobs {
            let result = match self.resolve_key_conflict(&job).await? {
                KeyConflict::Refused(result) => result,
                KeyConflict::None => single(self.schedule_in_main(vec![job]).await?)?,
                KeyConflict::OldCancelled => {
                    match single(self.schedule_in_main(vec![job]).await?)? {
                        Scheduled::Created(receipt) => Scheduled::Replaced(receipt),
                        result => result,
                    }
                }
            };
            results.push(result);
        }
        Ok(results)
    }

    /// Repeats a call whose outcome is unknown: with the same ids this schedules nothing twice.
    async fn schedule_in_main(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        // A store that is not durable is in this process: none of its results is lost, and the jobs
        // need not be cloned.
        if !self.main.capabilities().durable {
            return self.main.schedule(jobs).await;
        }
        for _ in 1..SCHEDULE_ATTEMPTS {
            match self.main.schedule(jobs.clone()).await {
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                    tracing::warn!(%error, "scheduling again with the same ids");
                }
                result => return result,
            }
        }
        self.main.schedule(jobs).await
    }

    /// Resolves the conflict of a new job with a live job of the same key in a drained store.
    async fn resolve_key_conflict(&self, job: &NewJob) -> Result<KeyConflict> {
        let Some(key) = &job.key else { return Ok(KeyConflict::None) };
        let same_key = JobRef::new(job.queue.clone(), key.clone());
        for store in &self.drain {
            let Some(JobView { job: old, state, .. }) = store.get(&same_key).await? else {
                continue;
            };
            let receipt = Receipt { id: old.id, due: old.due };
            let due = job.due.resolve(store.now().await?);
            match state {
                JobState::Dead => continue,
                JobState::Running => {
                    return Ok(KeyConflict::Refused(Scheduled::AlreadyRunning(receipt)));
                }
                _ if !job.on_conflict.replaces(old.due, due) => {
                    return Ok(KeyConflict::Refused(Scheduled::Kept(receipt)));
                }
                _ => {}
            }
            return Ok(match single(store.cancel(&[same_key]).await?)? {
                Cancelled::AlreadyRunning => {
                    KeyConflict::Refused(Scheduled::AlreadyRunning(receipt))
                }
                Cancelled::NotFound => KeyConflict::None,
                Cancelled::Cancelled | Cancelled::Requested => KeyConflict::OldCancelled,
            });
        }
        Ok(KeyConflict::None)
    }

    /// Cancels in every store, since a key may be live in several. A job that still runs takes
    /// precedence in the result.
    pub(super) async fn cancel(&self, job: JobRef) -> Result<Cancelled> {
        let job = [job];
        let mut combined = Cancelled::NotFound;
        for store in self.iter() {
            let result = single(store.cancel(&job).await?)?;
            combined = match (combined, result) {
                (Cancelled::AlreadyRunning, _) | (_, Cancelled::AlreadyRunning) => {
                    Cancelled::AlreadyRunning
                }
                (Cancelled::Requested, _) | (_, Cancelled::Requested) => Cancelled::Requested,
                (Cancelled::Cancelled, _) | (_, Cancelled::Cancelled) => Cancelled::Cancelled,
                (Cancelled::NotFound, Cancelled::NotFound) => Cancelled::NotFound,
            };
        }
        Ok(combined)
    }

    /// Reschedules the job in the first store that has it.
    pub(super) async fn reschedule(&self, change: Reschedule) -> Result<Rescheduled> {
        let change = [change];
        for store in self.iter() {
            match single(store.reschedule(&change).await?)? {
                Rescheduled::NotFound => {}
                result => return Ok(result),
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

    /// Sums the counts of all stores: of `queues` in their order, or of all queues by name.
    pub(super) async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        if self.drain.is_empty() {
            return self.main.stats(queues).await;
        }
        let mut sums: BTreeMap<QueueName, QueueStats> = BTreeMap::new();
        for store in self.iter() {
            for stats in store.stats(queues).await? {
                match sums.get_mut(&stats.queue) {
                    Some(sum) => add_counts(sum, &stats),
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

    /// Applies an operation to every store; returns the sum of the affected jobs or queues.
    pub(super) async fn operate(&self, operation: Operation<'_>) -> Result<u64> {
        let mut sum = 0;
        for store in self.iter() {
            let OperateReport { affected } = store.operate(operation).await?;
            sum += affected;
        }
        Ok(sum)
    }
}

/// A conflict of a new job's key with a live job of a drained store.
enum KeyConflict {
    /// No drained store has a live job with the key.
    None,
    /// The old job was cancelled; the new one replaces it.
    OldCancelled,
    /// The old job stays; the new one is not stored.
    Refused(Scheduled),
}

/// The result of a call with one item.
pub(super) fn single<T>(results: Vec<T>) -> Result<T> {
    results.into_iter().next().ok_or_else(|| {
        Error::new(ErrorKind::Internal, "the backend returned no result")
            .remedy("this is a bug of the backend")
    })
}

/// Adds the counts of a queue in another store. Totals are kept only if both stores have them.
fn add_counts(sum: &mut QueueStats, more: &QueueStats) {
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
