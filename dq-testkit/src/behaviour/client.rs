//! A client of a trial's store. It checks the rules that hold for every answer.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dq_core::{
    Backend, BrowseParams, Cancelled, ClaimParams, Claimed, DeadKind, DeadReason, Due, Ended,
    JobId, JobRef, JobState, JobView, Lease, LeasedJob, NewJob, Operation, Order, QueueName,
    QueueStats, Receipt, Renewal, Renewed, Reschedule, Rescheduled, Scheduled, Settled, Settlement,
    Target, Timestamp, Verdict, Want,
};

use super::failure::{Failure, TrialResult, ensure, ensure_eq};

/// Who claims and listens, unless a trial says otherwise.
pub(super) const WORKER: &str = "suite";

/// A lease of this length does not expire within a trial.
pub(super) const LEASE: Duration = Duration::from_secs(600);
/// Trials wait until a lease of this length expires. It lasts for a few calls on a busy machine.
pub(super) const SHORT_LEASE: Duration = Duration::from_millis(1_000);
/// Trials wait at once until a lease of this length expires. It may expire before, on a busy machine.
pub(super) const BRIEF_LEASE: Duration = Duration::from_millis(125);

#[derive(Debug, Clone)]
pub(super) struct Client {
    backend: Arc<dyn Backend>,
}

impl Client {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend }
    }

    pub(super) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    pub(super) async fn schedule_all(&self, jobs: Vec<NewJob>) -> TrialResult<Vec<Scheduled>> {
        let count = jobs.len();
        let answers = self.backend.schedule(jobs).await?;
        ensure_eq!(answers.len(), count, "schedule returns one answer per job");
        Ok(answers)
    }

    pub(super) async fn schedule(&self, job: NewJob) -> TrialResult<Scheduled> {
        only(self.backend.schedule(vec![job]).await?, "schedule")
    }

    pub(super) async fn create(&self, job: NewJob) -> TrialResult<Receipt> {
        let id = job.id;
        match self.schedule(job).await? {
            Scheduled::Created(receipt) if receipt.id == id => Ok(receipt),
            other => Err(Failure::new(format_args!(
                "a job without a conflict is `Created` under its id {id}, not {other:?}"
            ))),
        }
    }

    pub(super) async fn claim(&self, wants: &[Want]) -> TrialResult<Claimed> {
        let limit = wants.iter().map(|want| want.max).sum();
        self.claim_at_most(limit, wants).await
    }

    pub(super) async fn claim_at_most(&self, limit: usize, wants: &[Want]) -> TrialResult<Claimed> {
        self.claim_as(WORKER, limit, wants).await
    }

    /// Claims at most `limit` jobs, and checks the rules that hold for every claim.
    async fn claim_as(&self, worker: &str, limit: usize, wants: &[Want]) -> TrialResult<Claimed> {
        let claimed = self.backend.claim(ClaimParams::new(wants, limit, worker)).await?;
        ensure!(
            claimed.jobs.len() <= limit,
            "a claim with the limit {limit} returned {} jobs",
            claimed.jobs.len()
        );
        let mut seen = HashSet::new();
        for leased in &claimed.jobs {
            let job = &leased.job;
            ensure!(seen.insert(job.id), "one claim returned job {} twice", job.id);
            ensure!(
                wants.iter().any(|want| want.queue == job.queue),
                "a claim returned a job of {}, a queue that was not wanted",
                job.queue
            );
            ensure!(
                job.due <= claimed.now,
                "a job must not be early: job {} is due at {} and was leased at {}",
                job.id,
                job.due,
                claimed.now
            );
            ensure!(
                leased.leased_until > claimed.now,
                "a lease must end after it began: {} is not after {}",
                leased.leased_until,
                claimed.now
            );
            ensure!(job.deliveries > 0, "`deliveries` includes the current lease");
        }
        for want in wants {
            let due_times: Vec<Timestamp> = claimed
                .jobs
                .iter()
                .filter(|leased| leased.job.queue == want.queue)
                .map(|leased| leased.job.due)
                .collect();
            ensure!(
                due_times.len() <= want.max,
                "at most {} jobs of queue {} were wanted, {} were returned",
                want.max,
                want.queue,
                due_times.len()
            );
            ensure!(due_times.is_sorted(), "jobs of a queue must be in due order: {due_times:?}");
        }
        Ok(claimed)
    }

    /// Leases at most `max` due jobs for longer than the trial.
    pub(super) async fn lease(&self, queue: &QueueName, max: usize) -> TrialResult<Vec<LeasedJob>> {
        Ok(self.claim(&[want(queue, max)]).await?.jobs)
    }

    pub(super) async fn lease_one(&self, queue: &QueueName) -> TrialResult<LeasedJob> {
        self.lease_one_for(queue, LEASE).await
    }

    pub(super) async fn lease_one_for(
        &self,
        queue: &QueueName,
        lease_for: Duration,
    ) -> TrialResult<LeasedJob> {
        self.lease_one_as(WORKER, queue, lease_for).await
    }

    /// Leases the only due job of a queue for the runner with this name.
    pub(super) async fn lease_one_as(
        &self,
        worker: &str,
        queue: &QueueName,
        lease_for: Duration,
    ) -> TrialResult<LeasedJob> {
        let want = Want::new(queue.clone(), 10, lease_for);
        let mut jobs = self.claim_as(worker, 10, &[want]).await?.jobs;
        ensure_eq!(jobs.len(), 1, "exactly one job of this queue is due");
        Ok(jobs.remove(0))
    }

    pub(super) async fn expect_empty_claim(&self, queue: &QueueName, why: &str) -> TrialResult {
        let jobs = self.lease(queue, 10).await?;
        ensure!(jobs.is_empty(), "no job may be leased because {why}; leased were {jobs:?}");
        Ok(())
    }

    pub(super) async fn settle(&self, lease: Lease, verdict: Verdict) -> TrialResult<Settled> {
        let answers = self.backend.settle(&[Settlement::new(lease, verdict)]).await?;
        only(answers, "settle")
    }

    pub(super) async fn settle_accepted(
        &self,
        leased: &LeasedJob,
        verdict: Verdict,
    ) -> TrialResult {
        let answer = self.settle(leased.lease(), verdict.clone()).await?;
        ensure_eq!(answer, Settled::Accepted, "a live lease can be settled with {verdict:?}");
        Ok(())
    }

    pub(super) async fn settle_all_done(&self, jobs: &[LeasedJob]) -> TrialResult {
        let settlements: Vec<_> =
            jobs.iter().map(|leased| Settlement::new(leased.lease(), Verdict::Done)).collect();
        let answers = self.backend.settle(&settlements).await?;
        ensure_eq!(answers.len(), jobs.len(), "settle returns one answer per lease");
        ensure!(
            answers.iter().all(|answer| *answer == Settled::Accepted),
            "a live lease can be settled: {answers:?}"
        );
        Ok(())
    }

    pub(super) async fn renew(&self, lease: Lease, lease_for: Duration) -> TrialResult<Renewed> {
        let answers = self.backend.renew(&[Renewal::new(lease, lease_for)]).await?;
        only(answers, "renew")
    }

    pub(super) async fn cancel(
        &self,
        queue: &QueueName,
        target: impl Into<Target>,
    ) -> TrialResult<Cancelled> {
        let answers = self.backend.cancel(&[JobRef::new(queue.clone(), target)]).await?;
        only(answers, "cancel")
    }

    pub(super) async fn reschedule(
        &self,
        queue: &QueueName,
        target: impl Into<Target>,
        due: impl Into<Due>,
    ) -> TrialResult<Rescheduled> {
        let change = Reschedule { job: JobRef::new(queue.clone(), target), due: due.into() };
        let answers = self.backend.reschedule(&[change]).await?;
        only(answers, "reschedule")
    }

    pub(super) async fn stats(&self, queue: &QueueName) -> TrialResult<QueueStats> {
        let stats = only(self.backend.stats(std::slice::from_ref(queue)).await?, "stats")?;
        ensure_eq!(&stats.queue, queue, "stats are of the requested queue");
        ensure!(stats.adds_up() != Some(false), "the counts add up: {stats:?}");
        ensure_eq!(
            stats.next_due.is_some(),
            stats.scheduled + stats.ready > 0,
            "`next_due` is set exactly if a job is scheduled or ready"
        );
        Ok(stats)
    }

    pub(super) async fn expect_counts(
        &self,
        queue: &QueueName,
        wanted: Counts,
        when: &str,
    ) -> TrialResult {
        let stats = self.stats(queue).await?;
        let found = Counts {
            scheduled: stats.scheduled,
            ready: stats.ready,
            running: stats.running,
            dead: stats.dead,
        };
        ensure_eq!(found, wanted, "the counts of the queue {when}");
        Ok(())
    }

    pub(super) async fn get(
        &self,
        queue: &QueueName,
        target: impl Into<Target>,
    ) -> TrialResult<Option<JobView>> {
        Ok(self.backend.get(&JobRef::new(queue.clone(), target)).await?)
    }

    pub(super) async fn get_existing(&self, queue: &QueueName, id: JobId) -> TrialResult<JobView> {
        let found = self.get(queue, id).await?;
        found.ok_or_else(|| Failure::new(format_args!("job {id} is missing")))
    }

    pub(super) async fn get_ended(
        &self,
        queue: &QueueName,
        id: JobId,
    ) -> TrialResult<(JobView, Ended)> {
        let view = self.get_existing(queue, id).await?;
        ensure_eq!(view.state, JobState::Ended, "the state of a job that has left the store");
        let Some(ended) = view.ended.clone() else {
            return Err(Failure::new("a job in the state `Ended` has an end"));
        };
        Ok((view, ended))
    }

    pub(super) async fn list(
        &self,
        queue: &QueueName,
        state: JobState,
        limit: usize,
    ) -> TrialResult<Vec<JobView>> {
        self.list_all(BrowseParams::new(queue, state).limit(limit).payloads(true)).await
    }

    /// The ids of all jobs in this state, in the order of their listing.
    pub(super) async fn listed(
        &self,
        queue: &QueueName,
        state: JobState,
        limit: usize,
    ) -> TrialResult<Vec<JobId>> {
        let jobs = self.list(queue, state, limit).await?;
        Ok(jobs.into_iter().map(|view| view.job.id).collect())
    }

    pub(super) async fn list_all(&self, mut params: BrowseParams<'_>) -> TrialResult<Vec<JobView>> {
        let mut jobs = Vec::new();
        loop {
            let page = self.backend.browse(params).await?;
            let limit = params.limit;
            ensure!(
                page.jobs.len() <= limit,
                "a page of at most {limit} jobs has {}",
                page.jobs.len()
            );
            ensure!(
                !page.jobs.is_empty() || page.next.is_none(),
                "an empty page must be the last one"
            );
            jobs.extend(page.jobs);
            let Some(next) = page.next else { return Ok(jobs) };
            let continues = match params.order {
                Order::Ascending => params.after.is_none_or(|after| after < next),
                Order::Descending => params.after.is_none_or(|after| after > next),
            };
            ensure!(continues, "each page must continue after the previous one");
            params = params.after(Some(next));
        }
    }

    /// Makes an operation, which may take several calls. Returns how many jobs or queues were
    /// affected.
    pub(super) async fn operate(&self, operation: Operation<'_>) -> TrialResult<u64> {
        let mut affected = 0;
        loop {
            let report = self.backend.operate(operation).await?;
            affected += report.affected;
            if !report.more {
                return Ok(affected);
            }
            ensure!(report.affected > 0, "an operation that is not complete has changed a job");
        }
    }
}

/// Returns the only answer of a call for one job, lease or queue.
fn only<T>(mut answers: Vec<T>, call: &str) -> TrialResult<T> {
    ensure_eq!(answers.len(), 1, "{call} returns one answer for each part of the call");
    Ok(answers.remove(0))
}

/// Makes a call while `runner` claims, and returns its answer and the ids of the claimed jobs.
pub(super) async fn race_with_claim<T: Send + 'static>(
    runner: &Client,
    queue: &QueueName,
    call: impl Future<Output = TrialResult<T>> + Send + 'static,
) -> TrialResult<(T, Vec<JobId>)> {
    let (runner, queue) = (runner.clone(), queue.clone());
    let call = tokio::spawn(call);
    let claim = tokio::spawn(async move { runner.lease(&queue, 10).await });
    let answer = call.await.map_err(Failure::new)??;
    Ok((answer, ids(&claim.await.map_err(Failure::new)??)))
}

pub(super) fn want(queue: &QueueName, max: usize) -> Want {
    Want::new(queue.clone(), max, LEASE)
}

pub(super) fn next_step(due: impl Into<Due>, payload: &'static str) -> Verdict {
    Verdict::Again { due: due.into(), payload: payload.into() }
}

pub(super) fn dead(message: &str) -> Verdict {
    Verdict::Dead { reason: DeadReason::new(DeadKind::Rejected, message), failed: true }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) scheduled: u64,
    pub(super) ready: u64,
    pub(super) running: u64,
    pub(super) dead: u64,
}

impl Counts {
    pub(super) const NONE: Self = Self { scheduled: 0, ready: 0, running: 0, dead: 0 };

    pub(super) const fn scheduled(count: u64) -> Self {
        Self { scheduled: count, ..Self::NONE }
    }

    pub(super) const fn ready(count: u64) -> Self {
        Self { ready: count, ..Self::NONE }
    }

    pub(super) const fn running(count: u64) -> Self {
        Self { running: count, ..Self::NONE }
    }

    pub(super) const fn dead(count: u64) -> Self {
        Self { dead: count, ..Self::NONE }
    }
}

pub(super) fn ids(jobs: &[LeasedJob]) -> Vec<JobId> {
    jobs.iter().map(|leased| leased.job.id).collect()
}
