//! The server: its workers' calls.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::DropGuard;

use super::lease::{Loss, PullLease, PullOutcome, PullRenewed, PullSettled};
use super::line::{Line, Pulled, Wish, is_stopping};
use crate::backend::{Renewal, Renewed, Settled, Settlement, Verdict};
use crate::client::Dq;
use crate::error::{Error, Result};
use crate::model::{JobId, QueueName, Timestamp};
use crate::runner::{BATCH, Observer, Remote, start_claims};

/// Claims, renews and settles jobs for workers in other processes.
///
/// It is a runner in the eyes of the store, and its workers are listed with it. All its waiting
/// workers cost one claim a second and store, as one runner's. A worker's jobs take their queue's
/// settings from the configuration: attempts, backoff, death and late policies, as in a
/// [`Runner`](crate::Runner).
///
/// ```
/// # use std::time::Duration;
/// # use dq_core::{Dq, Outcome, PullOutcome, PullRequest, PullServer, QueueName};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> dq_core::Result<()> {
/// # let dq = Dq::connect("memory:").await?;
/// # dq.queue("MAIL")?.schedule("1", "application/json").await?;
/// let server = PullServer::new(&dq);
/// let mut request = PullRequest::new("worker-1", [(QueueName::new("MAIL")?, 4)]);
/// request.wait = Duration::from_secs(20);
/// for job in server.claim(&request).await?.accept() {
///     let done = PullOutcome::Returned(Outcome::Done);
///     server.settle(&[(job.lease, done)]).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PullServer {
    remote: Arc<Remote>,
    line: Arc<Line>,
    _stop_on_drop: DropGuard,
}

/// What a worker asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PullRequest {
    /// The worker's name, for operators; 1 to 128 bytes without control characters.
    pub worker: String,
    /// How many jobs of each queue; 1 to [`PullServer::MAX_QUEUES`] queues.
    pub queues: Vec<(QueueName, usize)>,
    /// How many jobs in all, at most [`PullServer::MAX_JOBS`].
    pub max: usize,
    /// How long to wait until a job is due, at most [`PullServer::MAX_WAIT`]. Zero: the stores are
    /// asked once.
    pub wait: Duration,
    /// For how long the jobs are leased, within [`PullServer::LEASES`]; `None` for the queue's
    /// setting.
    pub lease: Option<Duration>,
}

impl PullRequest {
    /// Asks for the given number of jobs of each queue, without waiting.
    pub fn new(
        worker: impl Into<String>,
        queues: impl IntoIterator<Item = (QueueName, usize)>,
    ) -> Self {
        let (worker, queues) = (worker.into(), queues.into_iter().collect());
        Self { worker, queues, max: usize::MAX, wait: Duration::ZERO, lease: None }
    }
}

impl PullServer {
    /// The most jobs in one answer. A larger number counts as this one.
    pub const MAX_JOBS: usize = BATCH;
    /// The longest wait for a job. A longer one counts as this one.
    pub const MAX_WAIT: Duration = Duration::from_secs(60);
    /// The range of a lease. A shorter or longer one counts as the nearest.
    pub const LEASES: std::ops::RangeInclusive<Duration> =
        Duration::from_secs(1)..=Duration::from_secs(86_400);
    /// The most queues in a request.
    pub const MAX_QUEUES: usize = 1_000;
    /// The longest name of a worker, in bytes.
    pub const MAX_WORKER: usize = 128;

    /// Creates a server. It calls no store before its first claim.
    pub fn new(dq: &Dq) -> Self {
        Self::observed(dq, Vec::new())
    }

    /// Creates a server with observers, as of a runner. They hear of settlements, store calls and
    /// failures, not of slots and handlers.
    pub fn observed(dq: &Dq, observers: Vec<Arc<dyn Observer>>) -> Self {
        let remote = Arc::new(Remote::new(dq.shared(), observers));
        let line = Arc::new(Line::new(Arc::clone(&remote)));
        Self { _stop_on_drop: remote.stop_token().drop_guard(), line, remote }
    }

    /// Returns the server's name among the runners.
    pub fn name(&self) -> &str {
        self.remote.name()
    }

    /// Returns the time by the store's clock, without a call.
    pub fn now(&self) -> Timestamp {
        self.remote.now()
    }

    /// Returns the worker that runs a job, if it got it or renewed its lease through this server.
    pub fn worker_of(&self, queue: &QueueName, job: JobId) -> Option<String> {
        self.line.workers.of(queue, job, self.remote.clock().elapsed())
    }

    /// Claims jobs for a worker: at once if some are due, or as soon as the first is.
    ///
    /// Workers take turns: of several that wait, each gets as many, and who has waited longest
    /// comes first.
    ///
    /// **Cancellation safety:** the jobs that this call would have returned are handed back at
    /// once.
    ///
    /// # Errors
    /// `InvalidInput`; `Closed` after [`stop`](Self::stop); the last claim's error if the store
    /// cannot be reached.
    pub async fn claim(&self, request: &PullRequest) -> Result<Pulled> {
        let wish = self.wish(request).map_err(|error| error.operation("claim"))?;
        start_claims(&self.remote, &self.line).await;
        let clock = Arc::clone(self.remote.clock());
        let queues = wish.queues.iter().map(|(queue, _)| Arc::clone(queue)).collect();
        self.line.workers.asked(&wish.worker, queues, clock.elapsed());
        // A claim that asks once ends when the stores answer.
        let wait = if wish.once { Self::MAX_WAIT } else { request.wait.min(Self::MAX_WAIT) };
        self.line.join(wish)?.wait(clock.sleep(wait)).await
    }

    fn wish(&self, request: &PullRequest) -> Result<Wish> {
        let PullRequest { worker, queues, max, wait, lease } = request;
        if worker.is_empty() || worker.len() > Self::MAX_WORKER || worker.contains(char::is_control)
        {
            return Err(Error::invalid(format!("{:?} is not a worker's name", head(worker)))
                .remedy("a name has 1 to 128 bytes without control characters"));
        }
        if !(1..=Self::MAX_QUEUES).contains(&queues.len()) {
            return Err(Error::invalid(format!("the claim names {} queues", queues.len()))
                .remedy(format!("name 1 to {} queues", Self::MAX_QUEUES)));
        }
        let mut names = HashSet::new();
        for (queue, number) in queues {
            queue.refuse_reserved()?;
            if *number == 0 || !names.insert(queue) {
                let message =
                    format!("the claim wants no jobs of queue {queue}, or names it twice");
                return Err(Error::invalid(message)
                    .remedy("name a queue once, with a number of at least 1, or leave it out"));
            }
        }
        if *max == 0 {
            return Err(Error::invalid("the claim wants at most 0 jobs")
                .remedy("give a `max` of at least 1, or leave it out"));
        }
        let wanted = |(queue, number): &(QueueName, usize)| {
            Ok((self.remote.claimable(queue)?, (*number).min(Self::MAX_JOBS)))
        };
        let queues = queues.iter().map(wanted).collect::<Result<Vec<_>>>()?;
        let sum = queues.iter().map(|(_, number)| number).sum();
        Ok(Wish {
            worker: worker.clone(),
            queues,
            max: (*max).min(sum).min(Self::MAX_JOBS),
            lease: lease.map(|lease| lease.clamp(*Self::LEASES.start(), *Self::LEASES.end())),
            once: wait.is_zero(),
        })
    }

    /// Renews leases, each for its own duration from now on.
    ///
    /// # Errors
    /// `Unavailable`, `OutcomeUnknown` or `Closed`: some leases may be renewed.
    pub async fn renew(&self, leases: &[PullLease]) -> Result<Vec<PullRenewed>> {
        let mut results = vec![PullRenewed::Lost(Loss::Unknown); leases.len()];
        for (store, batch) in self.batches(leases) {
            let renewal = |at: &usize| Renewal::new(leases[*at].lease(), leases[*at].lease_for());
            let renewals: Vec<_> = batch.iter().map(renewal).collect();
            let renewed = self.remote.renew(store, &renewals).await?;
            for (at, renewed) in batch.into_iter().zip(renewed) {
                let (lease, now) = (&leases[at], self.remote.clock().elapsed());
                results[at] = match renewed {
                    Renewed::Until(until) => {
                        let queue = self.remote.queue(&lease.queue)?;
                        self.line.workers.runs(queue, lease, Duration::ZERO, now);
                        PullRenewed::Until(until)
                    }
                    Renewed::LostLease => {
                        self.line.workers.ended(lease, None, now);
                        let view = self.remote.find(store, &lease.lease()).await.ok().flatten();
                        PullRenewed::Lost(Loss::of(view.as_ref()))
                    }
                };
            }
        }
        Ok(results)
    }

    /// Settles leases by their runs' outcomes. A bad outcome has an error of its own.
    ///
    /// A call may be repeated: an outcome that has taken effect is settled, unless the store no
    /// longer shows it.
    ///
    /// # Errors
    /// `Unavailable`, `OutcomeUnknown` or `Closed`: some leases may be settled.
    pub async fn settle(
        &self,
        results: &[(PullLease, PullOutcome)],
    ) -> Result<Vec<Result<PullSettled>>> {
        let leases: Vec<_> = results.iter().map(|(lease, _)| lease.clone()).collect();
        let mut settled = vec![Ok(PullSettled::Lost(Loss::Unknown)); results.len()];
        for (store, batch) in self.batches(&leases) {
            let (mut places, mut settlements) = (Vec::new(), Vec::new());
            for at in batch {
                match self.verdict(store, &results[at]) {
                    Ok(verdict) => {
                        places.push(at);
                        settlements.push(Settlement::new(leases[at].lease(), verdict));
                    }
                    Err(error) => settled[at] = Err(error),
                }
            }
            let answers = self.remote.settle(store, &settlements).await?;
            for ((at, settlement), answer) in places.into_iter().zip(&settlements).zip(answers) {
                settled[at] = match answer {
                    Ok(answer) => Ok(self.settled(store, &results[at], settlement, answer).await),
                    Err(error) => Err(error),
                };
            }
        }
        Ok(settled)
    }

    fn verdict(
        &self,
        store: usize,
        (lease, outcome): &(PullLease, PullOutcome),
    ) -> Result<Verdict> {
        match outcome {
            PullOutcome::Returned(outcome) => {
                self.remote.verdict(store, &lease.to_job(), Ok(outcome))
            }
            PullOutcome::Failed(error) => self.remote.verdict(store, &lease.to_job(), Err(error)),
            PullOutcome::Released => Ok(Verdict::Release { started: true }),
        }
    }

    async fn settled(
        &self,
        store: usize,
        (lease, outcome): &(PullLease, PullOutcome),
        settlement: &Settlement,
        answer: Settled,
    ) -> PullSettled {
        let now = self.remote.clock().elapsed();
        let counts = (answer == Settled::Accepted && *outcome != PullOutcome::Released)
            .then_some(&settlement.verdict);
        self.line.workers.ended(lease, counts, now);
        let view = match answer {
            Settled::Accepted => None,
            Settled::LostLease => self.remote.find(store, &lease.lease()).await.ok().flatten(),
        };
        let repeated = lease.was_settled(outcome, view.as_ref());
        self.remote.report(&lease.to_job(), settlement, answer, repeated);
        match answer {
            Settled::LostLease if !repeated => PullSettled::Lost(Loss::of(view.as_ref())),
            _ => PullSettled::Settled,
        }
    }

    /// Groups leases by store, as positions. A lease that is there twice is in two batches.
    fn batches(&self, leases: &[PullLease]) -> Vec<(usize, Vec<usize>)> {
        let mut batches = Vec::new();
        // A lease of a store that was drained and is configured no more is lost.
        let known = |at: &usize| leases[*at].store < self.remote.stores();
        let mut rest: Vec<usize> = (0..leases.len()).filter(known).collect();
        while let Some(first) = rest.first() {
            let store = leases[*first].store;
            let mut seen = HashSet::new();
            let (batch, later): (Vec<usize>, Vec<usize>) = rest.into_iter().partition(|at| {
                leases[*at].store == store && seen.insert((&leases[*at].queue, leases[*at].job))
            });
            batches.push((store, batch));
            rest = later;
        }
        batches
    }

    /// Answers all waiting workers without jobs, and hands back what no worker has got.
    ///
    /// Workers can still renew and settle leases.
    pub async fn stop(&self) {
        self.line.close(is_stopping(), || Ok(()));
        self.remote.stop().await;
    }
}

fn head(text: &str) -> String {
    text.chars().take(48).collect()
}
