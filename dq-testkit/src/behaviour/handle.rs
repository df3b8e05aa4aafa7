//! One handle on a store, with calls about single jobs, each answer checked for what holds always.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dq_core::{
    Backend, BrowseParams, Cancelled, ClaimParams, Claimed, JobId, JobRef, JobState, JobView,
    Lease, LeasedJob, NewJob, Operation, QueueName, QueueStats, Receipt, Renewal, Renewed,
    Reschedule, Rescheduled, Scheduled, Settled, Settlement, Target, Timestamp, Verdict, Want,
};

use super::failure::{Failure, Passed, ensure, ensure_eq};

/// A lease that does not end within a trial.
pub(super) const LEASE: Duration = Duration::from_secs(600);
/// A lease whose end is waited for; long enough for a few calls on a busy machine.
pub(super) const SHORT_LEASE: Duration = Duration::from_millis(1_000);

/// One handle on a store.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    backend: Arc<dyn Backend>,
}

impl Handle {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend }
    }

    pub(super) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Schedules jobs.
    pub(super) async fn put_all(&self, jobs: Vec<NewJob>) -> Passed<Vec<Scheduled>> {
        let asked = jobs.len();
        let answers = self.backend.schedule(jobs).await?;
        ensure_eq!(answers.len(), asked, "schedule answers once for each job");
        Ok(answers)
    }

    /// Schedules one job.
    pub(super) async fn put(&self, job: NewJob) -> Passed<Scheduled> {
        Ok(self.put_all(vec![job]).await?[0])
    }

    /// Schedules one job that has to be stored as new.
    pub(super) async fn create(&self, job: NewJob) -> Passed<Receipt> {
        let id = job.id;
        match self.put(job).await? {
            Scheduled::Created(receipt) if receipt.id == id => Ok(receipt),
            other => Err(Failure::new(format_args!(
                "a job with nothing in its way is `Created` under its own id {id}, not {other:?}"
            ))),
        }
    }

    /// Claims with no bound but those of the wants.
    pub(super) async fn claim(&self, wants: &[Want]) -> Passed<Claimed> {
        let limit = wants.iter().map(|want| want.max).sum();
        self.claim_at_most(limit, wants).await
    }

    /// Claims, and checks what is true of every claim.
    pub(super) async fn claim_at_most(&self, limit: usize, wants: &[Want]) -> Passed<Claimed> {
        let claimed = self.backend.claim(ClaimParams { wants, limit, worker: "suite" }).await?;
        ensure!(
            claimed.jobs.len() <= limit,
            "at most {limit} jobs were wanted in all, {} came",
            claimed.jobs.len()
        );
        let mut seen = HashSet::new();
        for leased in &claimed.jobs {
            let job = &leased.job;
            ensure!(seen.insert(job.id), "one claim leases job {} once, not twice", job.id);
            ensure!(
                wants.iter().any(|want| want.queue == job.queue),
                "a claim returns jobs of the wanted queues only, not of {}",
                job.queue
            );
            ensure!(
                job.due <= claimed.now,
                "never early: job {} is due at {} and was leased at {}",
                job.id,
                job.due,
                claimed.now
            );
            ensure!(
                leased.leased_until > claimed.now,
                "a lease ends after it began: {} is not after {}",
                leased.leased_until,
                claimed.now
            );
            ensure!(job.deliveries > 0, "`deliveries` counts the lease in hand");
        }
        for want in wants {
            let dues: Vec<Timestamp> = claimed
                .jobs
                .iter()
                .filter(|leased| leased.job.queue == want.queue)
                .map(|leased| leased.job.due)
                .collect();
            ensure!(
                dues.len() <= want.max,
                "at most {} jobs of queue {} were wanted, {} came",
                want.max,
                want.queue,
                dues.len()
            );
            ensure!(dues.is_sorted(), "oldest due first within a queue: {dues:?}");
        }
        Ok(claimed)
    }

    /// Leases at most `max` jobs of one queue for good.
    pub(super) async fn take(&self, queue: &QueueName, max: usize) -> Passed<Vec<LeasedJob>> {
        Ok(self.claim(&[want(queue, max)]).await?.jobs)
    }

    /// Leases the one job that is due.
    pub(super) async fn take_one(&self, queue: &QueueName) -> Passed<LeasedJob> {
        self.take_one_for(queue, LEASE).await
    }

    /// Leases the one job that is due, for a given time.
    pub(super) async fn take_one_for(
        &self,
        queue: &QueueName,
        lease_for: Duration,
    ) -> Passed<LeasedJob> {
        let want = Want { queue: queue.clone(), max: 10, lease_for };
        let mut jobs = self.claim(&[want]).await?.jobs;
        ensure_eq!(jobs.len(), 1, "exactly one job is due in this queue");
        Ok(jobs.remove(0))
    }

    /// Checks that nothing is to be had from a queue.
    pub(super) async fn take_none(&self, queue: &QueueName, why: &str) -> Passed {
        let jobs = self.take(queue, 10).await?;
        ensure!(jobs.is_empty(), "nothing may be leased, because {why}; found {jobs:?}");
        Ok(())
    }

    /// Ends one lease.
    pub(super) async fn settle(&self, lease: Lease, verdict: Verdict) -> Passed<Settled> {
        let answers = self.backend.settle(&[Settlement { lease, verdict }]).await?;
        ensure_eq!(answers.len(), 1, "settle answers once for each lease");
        Ok(answers[0])
    }

    /// Ends one lease that is held.
    pub(super) async fn accept(&self, leased: &LeasedJob, verdict: Verdict) -> Passed {
        let answer = self.settle(leased.lease(), verdict.clone()).await?;
        ensure_eq!(answer, Settled::Accepted, "the holder of a lease may settle it: {verdict:?}");
        Ok(())
    }

    /// Ends many leases that are held.
    pub(super) async fn finish_all(&self, jobs: &[LeasedJob]) -> Passed {
        let settlements: Vec<_> = jobs
            .iter()
            .map(|leased| Settlement { lease: leased.lease(), verdict: Verdict::Done })
            .collect();
        let answers = self.backend.settle(&settlements).await?;
        ensure_eq!(answers.len(), jobs.len(), "settle answers once for each lease");
        ensure!(
            answers.iter().all(|answer| *answer == Settled::Accepted),
            "the holder of a lease may settle it: {answers:?}"
        );
        Ok(())
    }

    /// Renews one lease.
    pub(super) async fn renew(&self, lease: Lease, lease_for: Duration) -> Passed<Renewed> {
        let answers = self.backend.renew(&[Renewal { lease, lease_for }]).await?;
        ensure_eq!(answers.len(), 1, "renew answers once for each lease");
        Ok(answers[0])
    }

    /// Cancels one job.
    pub(super) async fn cancel(
        &self,
        queue: &QueueName,
        target: impl Into<Target>,
    ) -> Passed<Cancelled> {
        let answers = self.backend.cancel(&[JobRef::new(queue.clone(), target)]).await?;
        ensure_eq!(answers.len(), 1, "cancel answers once for each job");
        Ok(answers[0])
    }

    /// Moves one job.
    pub(super) async fn reschedule(
        &self,
        queue: &QueueName,
        target: impl Into<Target>,
        due: impl Into<dq_core::Due>,
    ) -> Passed<Rescheduled> {
        let wish = Reschedule { job: JobRef::new(queue.clone(), target), due: due.into() };
        let answers = self.backend.reschedule(&[wish]).await?;
        ensure_eq!(answers.len(), 1, "reschedule answers once for each job");
        Ok(answers[0])
    }

    /// Counts one queue; what came in must equal what is there plus what left.
    pub(super) async fn stats(&self, queue: &QueueName) -> Passed<QueueStats> {
        let mut answers = self.backend.stats(std::slice::from_ref(queue)).await?;
        ensure_eq!(answers.len(), 1, "stats answers once for each queue asked");
        let stats = answers.remove(0);
        ensure_eq!(&stats.queue, queue, "stats are of the queue asked");
        ensure!(stats.adds_up() != Some(false), "the counts add up: {stats:?}");
        ensure_eq!(
            stats.next_due.is_some(),
            stats.scheduled + stats.ready > 0,
            "`next_due` is there exactly if a job is scheduled or ready"
        );
        Ok(stats)
    }

    /// Checks how many jobs of a queue stand where.
    pub(super) async fn expect(&self, queue: &QueueName, wanted: Counts, when: &str) -> Passed {
        let stats = self.stats(queue).await?;
        let found = Counts {
            scheduled: stats.scheduled,
            ready: stats.ready,
            running: stats.running,
            dead: stats.dead,
        };
        ensure_eq!(found, wanted, "each job is counted in exactly one state {when}");
        Ok(())
    }

    /// Looks at one job.
    pub(super) async fn get(
        &self,
        queue: &QueueName,
        target: impl Into<Target>,
    ) -> Passed<Option<JobView>> {
        Ok(self.backend.get(&JobRef::new(queue.clone(), target)).await?)
    }

    /// Looks at one job that has to be there.
    pub(super) async fn view(&self, queue: &QueueName, id: JobId) -> Passed<JobView> {
        let found = self.get(queue, id).await?;
        found.ok_or_else(|| Failure::new(format_args!("job {id} is in the store")))
    }

    /// Lists a state page by page.
    pub(super) async fn list(
        &self,
        queue: &QueueName,
        state: JobState,
        limit: usize,
    ) -> Passed<Vec<JobView>> {
        let mut jobs = Vec::new();
        let mut after = None;
        loop {
            let page = self.backend.browse(BrowseParams { queue, state, after, limit }).await?;
            ensure!(page.jobs.len() <= limit, "a page has at most {limit} jobs");
            ensure!(
                !page.jobs.is_empty() || page.next.is_none(),
                "an empty page is the last one, so that a walk through the pages ends"
            );
            jobs.extend(page.jobs);
            let Some(next) = page.next else { return Ok(jobs) };
            ensure!(after < Some(next), "each page goes on where the last one ended");
            after = Some(next);
        }
    }

    /// Intervenes, and returns how many were affected.
    pub(super) async fn operate(&self, operation: Operation<'_>) -> Passed<u64> {
        Ok(self.backend.operate(operation).await?.affected)
    }
}

/// A wish for jobs of one queue that are kept for good.
pub(super) fn want(queue: &QueueName, max: usize) -> Want {
    Want { queue: queue.clone(), max, lease_for: LEASE }
}

/// How many jobs stand where.
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

/// The ids of leased jobs in order.
pub(super) fn ids(jobs: &[LeasedJob]) -> Vec<JobId> {
    jobs.iter().map(|leased| leased.job.id).collect()
}
