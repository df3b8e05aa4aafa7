//! Combines the main store and the drained stores.
//!
//! A *drained* store (`[[drain]]`) gets no new jobs; its jobs still run and can be changed. A call
//! on several stores is a sequence of calls, each of which may fail.
//!
//! A new job in the main store replaces a drained store's job with its key: it is stored before the
//! old one is cancelled, so an interrupted call may leave both, but never neither. A lookup reads
//! the main store last, or it could miss a moving job.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backend::{
    Backend, Cancelled, Checked, Operation, QueueStats, Receipt, Reschedule, Rescheduled,
    Scheduled, SqlStatement, Totals,
};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{JobRef, JobState, JobView, NewJob, OnRunning, QueueName, Timestamp};

/// How often a call with an unknown outcome is made.
const SCHEDULE_ATTEMPTS: usize = 3;

/// Jobs in one call that changes many.
const JOBS_PER_CALL: usize = 1_000;

fn refuse_reserved(jobs: &[NewJob]) -> Result<()> {
    let checked = jobs.iter().try_for_each(|job| job.queue.refuse_reserved());
    checked.map_err(|error| error.operation("schedule"))
}

/// A client's stores.
#[derive(Debug)]
pub(crate) struct Stores {
    pub(crate) main: Arc<Checked>,
    pub(crate) drain: Vec<Arc<Checked>>,
}

impl Stores {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Checked>> {
        std::iter::once(&self.main).chain(&self.drain)
    }

    pub(crate) async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        refuse_reserved(&jobs)?;
        self.schedule_anywhere(jobs).await
    }

    /// Ignores drained stores: their jobs with the same keys stay.
    pub(crate) fn schedule_statement(&self, jobs: Vec<NewJob>) -> Result<SqlStatement> {
        refuse_reserved(&jobs)?;
        self.main.schedule_statement(jobs)
    }

    /// Schedules jobs in any queue, also a reserved one.
    async fn schedule_anywhere(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        if self.drain.is_empty() || jobs.iter().all(|job| job.key.is_none()) {
            return self.schedule_in_main(jobs).await;
        }
        // Validate all jobs first, because they are scheduled one by one.
        self.main.validate(&jobs)?;
        let mut results = Vec::with_capacity(jobs.len());
        for job in jobs {
            results.push(match self.find_key_conflict(&job).await? {
                KeyConflict::Decided(result) => result,
                KeyConflict::Replaces { old, is_repeated } => {
                    self.schedule_and_cancel(job, &old, is_repeated).await?
                }
            });
        }
        Ok(results)
    }

    /// Schedules one of the framework's own jobs in a reserved queue.
    pub(crate) async fn schedule_internal(&self, job: NewJob) -> Result<Scheduled> {
        single(self.schedule_anywhere(vec![job]).await?)
    }

    /// Schedules in the main store, then cancels the drained jobs that the new job replaces.
    ///
    /// # Errors
    /// `OutcomeUnknown` if the job was scheduled and a drained store cannot be reached then. A
    /// repeated call with the same id cancels the remaining old jobs and lets a started one run.
    async fn schedule_and_cancel(
        &self,
        job: NewJob,
        old: &[OldJob<'_>],
        is_repeated: bool,
    ) -> Result<Scheduled> {
        let new = JobRef::new(job.queue.clone(), job.id);
        let (id, on_running) = (job.id, job.on_running);
        let result = single(self.schedule_in_main(vec![job]).await?)?;
        match result {
            // No job was stored or replaced: the key's job is running, the new one has already
            // ended, or its id is in another queue.
            Scheduled::AlreadyRunning(_) | Scheduled::Ended(_) => return Ok(result),
            Scheduled::Kept(kept) if kept.id == id => return Ok(result),
            Scheduled::Kept(_) | Scheduled::Created(_) | Scheduled::Replaced(_) => {}
        }
        // If the main store kept another job with this key, that also replaces the old ones.
        let mut replaced = matches!(result, Scheduled::Replaced(_));
        let mut running = None;
        for OldJob { store, receipt } in old {
            // Cancel by id, because another process may have stored a new job with the key.
            let old = JobRef::new(new.queue.clone(), receipt.id);
            let cancelled = store
                .cancel(&[old])
                .await
                .map_err(|error| interrupted("schedule", "the job was scheduled", store, &error))?;
            match single(cancelled)? {
                Cancelled::Cancelled => replaced = true,
                Cancelled::AlreadyRunning if on_running == OnRunning::Refuse => {
                    running = Some(*receipt);
                }
                // A detached job keeps its key in the drained store, where no new job needs it.
                Cancelled::AlreadyRunning | Cancelled::NotFound => {}
            }
        }
        match (result, running) {
            // Taking it back after it replaced a job would lose both. A repeated call does not know
            // whether it has.
            (Scheduled::Created(created), Some(running)) if !replaced && !is_repeated => {
                self.take_back(new, created, running).await
            }
            (Scheduled::Created(created), _) if replaced => Ok(Scheduled::Replaced(created)),
            (result, _) => Ok(result),
        }
    }

    /// Cancels a new job because the old one with its key has started meanwhile.
    async fn take_back(
        &self,
        new: JobRef,
        created: Receipt,
        running: Receipt,
    ) -> Result<Scheduled> {
        let cancelled = self.main.cancel(&[new]).await.map_err(|error| {
            let done = "the job was scheduled, although one with its key has started";
            interrupted("schedule", done, &self.main, &error)
        })?;
        Ok(match single(cancelled)? {
            Cancelled::Cancelled => Scheduled::AlreadyRunning(running),
            // The new job was due at once and has started.
            Cancelled::AlreadyRunning | Cancelled::NotFound => Scheduled::Created(created),
        })
    }

    /// Repeats a call with an unknown outcome. The same ids store nothing twice, except a job that
    /// ended in between and is not remembered.
    async fn schedule_in_main(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        // A store that is not durable runs in this process and loses no result, so skip the clone.
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

    /// Finds the live or dead job with this id in the main store; `None` also if that cannot
    /// browse.
    async fn find_stored(&self, job: &NewJob) -> Result<Option<Receipt>> {
        if !self.main.capabilities().browse {
            return Ok(None);
        }
        let found = self.main.get(&JobRef::new(job.queue.clone(), job.id)).await?;
        let found = found.filter(|view| view.state != JobState::Ended);
        Ok(found.map(|JobView { job, .. }| Receipt { id: job.id, due: job.due }))
    }

    /// Decides by policy which live jobs with this key stay. Changes nothing.
    async fn find_key_conflict(&self, job: &NewJob) -> Result<KeyConflict<'_>> {
        let (mut old, mut is_repeated) = (Vec::new(), false);
        let Some(key) = &job.key else { return Ok(KeyConflict::Replaces { old, is_repeated }) };
        let same_key = JobRef::new(job.queue.clone(), key.clone());
        for store in &self.drain {
            let Some(JobView { job: found, state, .. }) = store.get(&same_key).await? else {
                continue;
            };
            let receipt = Receipt { id: found.id, due: found.due };
            let due = job.due.resolve(store.now().await?);
            match state {
                JobState::Dead | JobState::Ended => {}
                // An earlier call with this id stored it before the store was drained.
                _ if receipt.id == job.id => {
                    return Ok(KeyConflict::Decided(Scheduled::Created(receipt)));
                }
                // An earlier call with this id stored the new job, but was interrupted before it
                // cancelled this one. The policy has already decided.
                _ if job.on_running == OnRunning::Refuse
                    && self.find_stored(job).await?.is_some() =>
                {
                    is_repeated = true;
                    old.push(OldJob { store, receipt });
                }
                JobState::Running if job.on_running == OnRunning::Detach => {}
                JobState::Running => {
                    return Ok(KeyConflict::Decided(Scheduled::AlreadyRunning(receipt)));
                }
                _ if !job.on_conflict.replaces(receipt.due, due) => {
                    // A detached job that is now retried: both are stored.
                    let stored = self.find_stored(job).await?;
                    let decided = stored.map_or(Scheduled::Kept(receipt), Scheduled::Created);
                    return Ok(KeyConflict::Decided(decided));
                }
                _ => old.push(OldJob { store, receipt }),
            }
        }
        // Check before anything is stored.
        if !old.is_empty()
            && let Some(store) = self.iter().find(|store| !store.capabilities().cancel)
        {
            return Err(Error::unsupported(store.name(), "cancel").operation("schedule"));
        }
        Ok(KeyConflict::Replaces { old, is_repeated })
    }

    /// Cancels in every store, because a key may be live in several. A running job takes precedence
    /// in the result.
    pub(super) async fn cancel(&self, job: JobRef) -> Result<Cancelled> {
        let job = [job];
        let (mut combined, mut has_cancelled) = (Cancelled::NotFound, false);
        for store in self.drain.iter().chain([&self.main]) {
            let result = store.cancel(&job).await.map_err(|error| match has_cancelled {
                true => interrupted("cancel", "a job was cancelled", store, &error),
                false => error,
            })?;
            let result = single(result)?;
            has_cancelled |= result == Cancelled::Cancelled;
            if combined != Cancelled::AlreadyRunning && result != Cancelled::NotFound {
                combined = result;
            }
        }
        Ok(combined)
    }

    pub(super) async fn reschedule(&self, change: Reschedule) -> Result<Rescheduled> {
        let change = [change];
        for store in self.search_order() {
            match single(store.reschedule(&change).await?)? {
                Rescheduled::NotFound => {}
                result => return Ok(result),
            }
        }
        Ok(Rescheduled::NotFound)
    }

    pub(super) async fn cancel_many(&self, jobs: Vec<JobRef>) -> Result<Vec<Cancelled>> {
        let mut results = Vec::with_capacity(jobs.len());
        if self.drain.is_empty() {
            for jobs in jobs.chunks(JOBS_PER_CALL) {
                results.extend(self.main.cancel(jobs).await?);
            }
            return Ok(results);
        }
        for job in jobs {
            results.push(self.cancel(job).await?);
        }
        Ok(results)
    }

    pub(super) async fn reschedule_many(&self, moves: Vec<Reschedule>) -> Result<Vec<Rescheduled>> {
        let mut results = Vec::with_capacity(moves.len());
        if self.drain.is_empty() {
            for moves in moves.chunks(JOBS_PER_CALL) {
                results.extend(self.main.reschedule(moves).await?);
            }
            return Ok(results);
        }
        for change in moves {
            results.push(self.reschedule(change).await?);
        }
        Ok(results)
    }

    pub(super) async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        for store in self.search_order() {
            if let Some(found) = store.get(job).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The main store comes first, because it has most jobs, and again last, because the job may
    /// have moved there meanwhile.
    fn search_order(&self) -> impl Iterator<Item = &Arc<Checked>> {
        self.iter().chain((!self.drain.is_empty()).then_some(&self.main))
    }

    /// Sums the counts of `queues` in order, or of all queues by name.
    pub(crate) async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        if self.drain.is_empty() {
            return self.main.stats(queues).await;
        }
        let mut sums: BTreeMap<QueueName, QueueStats> = BTreeMap::new();
        for store in self.iter() {
            for stats in store.stats(queues).await? {
                if let Some(sum) = sums.get_mut(&stats.queue) {
                    add_counts(sum, &stats);
                } else {
                    sums.insert(stats.queue.clone(), stats);
                }
            }
        }
        if queues.is_empty() {
            return Ok(sums.into_values().collect());
        }
        Ok(queues.iter().filter_map(|queue| sums.get(queue).cloned()).collect())
    }

    pub(super) async fn forecast(
        &self,
        queue: &QueueName,
        edges: &[Timestamp],
    ) -> Result<Vec<u64>> {
        let mut sums = vec![0; edges.len().saturating_sub(1)];
        for store in self.iter() {
            for (sum, jobs) in sums.iter_mut().zip(store.forecast(queue, edges).await?) {
                *sum += jobs;
            }
        }
        Ok(sums)
    }

    /// Runs an operation on every store, except that drained ones without limits keep none. Returns
    /// the total affected count.
    pub(super) async fn operate(&self, operation: Operation<'_>) -> Result<u64> {
        let mut sum = 0;
        let is_limit = matches!(operation, Operation::OverrideFlow { .. });
        let can = |store: &&Arc<Checked>| {
            !is_limit || store.capabilities().flow || Arc::ptr_eq(store, &self.main)
        };
        for store in self.iter().filter(can) {
            let report = store.operate(operation).await.map_err(|error| match sum {
                0 => error,
                _ => interrupted("operate", "jobs of another store were changed", store, &error),
            })?;
            sum += report.affected;
        }
        Ok(sum)
    }

    /// Closes all stores, even after one fails.
    pub(super) async fn close(&self) -> Result<()> {
        let mut result = Ok(());
        for store in self.iter() {
            result = result.and(store.close().await);
        }
        result
    }
}

/// A live job of a drained store with the new job's key.
struct OldJob<'a> {
    store: &'a Checked,
    receipt: Receipt,
}

/// What the policies decide about jobs with the new job's key.
enum KeyConflict<'a> {
    /// The new job replaces these jobs, if any. `is_repeated`: an earlier call with the same id
    /// left them.
    Replaces { old: Vec<OldJob<'a>>, is_repeated: bool },
    /// An old job stays and nothing changes; this is the result.
    Decided(Scheduled),
}

/// Creates the error of a call that failed on `store`; `done` says what an earlier call did.
fn interrupted(operation: &'static str, done: &str, store: &Checked, error: &Error) -> Error {
    // Keep the error kind if repeating cannot help.
    let kind = if error.is_retryable() { ErrorKind::OutcomeUnknown } else { error.kind() };
    let message =
        format!("{done}, and a further call on the {} store failed: {error}", store.name());
    Error::new(kind, message)
        .remedy("repeat the call; one that schedules a job, with the same job id")
        .source(error.clone())
        .operation(operation)
}

/// Returns the only result of a call for one job.
pub(super) fn single<T>(results: Vec<T>) -> Result<T> {
    results.into_iter().next().ok_or_else(|| {
        Error::new(ErrorKind::Internal, "the backend returned no result")
            .remedy("report it to the backend's authors")
    })
}

/// Keeps totals only if both stores have them.
fn add_counts(sum: &mut QueueStats, more: &QueueStats) {
    sum.scheduled += more.scheduled;
    sum.ready += more.ready;
    sum.running += more.running;
    sum.dead += more.dead;
    sum.paused |= more.paused;
    sum.flow.opens_at = sum.flow.opens_at.max(more.flow.opens_at);
    sum.flow.throttled_until = sum.flow.throttled_until.max(more.flow.throttled_until);
    sum.flow.used = sum.flow.used.max(more.flow.used);
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
