//! Claims what waiting workers want, and announces them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::announce;
use super::before::before_run;
use super::claim::{self, Claimer, Left};
use super::claim_timer::ClaimTimer;
use super::flow;
use super::remote::{Remote, RemoteQueue};
use super::start::EXPIRED_IN_CLAIM;
use super::store::{Before, RunSignals, Start, StoreContext};
use crate::backend::{Backend, Claimed, LeasedJob, Settlement, Want};
use crate::config::QueuePolicy;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::panics;
use crate::model::{QueueName, RunnerInfo, Timestamp, WorkerInfo};

/// A loop that listens to more queues begins anew with those in demand.
const MAX_QUEUES: usize = 10_000;

/// A claimed job on its way to a worker.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) queue: Arc<RemoteQueue>,
    pub(crate) leased: LeasedJob,
    /// For how long it was leased.
    pub(crate) lease_for: Duration,
}

/// What the waiting workers want from one store.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// How many jobs of each queue, and for how long leased, in the order of a claim.
    pub(crate) wants: Vec<(Arc<RemoteQueue>, usize, Duration)>,
    pub(crate) limit: usize,
}

/// What workers do at the moment, for an announcement.
#[derive(Debug)]
pub(crate) struct Presence {
    /// The running jobs of each queue, and how many more the waiting workers would take.
    pub(crate) queues: Vec<(Arc<RemoteQueue>, usize, usize)>,
    /// How many more jobs they would take together.
    pub(crate) free: usize,
    pub(crate) workers: Vec<WorkerInfo>,
}

/// The workers that wait for jobs. Each store is named by its number.
pub(crate) trait Takers: Send + Sync + 'static {
    /// Returns the demand. A claim for it begins.
    fn demand(&self, store: usize) -> Demand;

    /// Deals out the jobs of the claim. `is_all` says that no more are due.
    fn take(&self, store: usize, jobs: Vec<Taken>, is_all: bool);

    /// Records that the claim has failed. If it is the `last`, no other follows.
    fn failed(&self, store: usize, error: &Error, last: bool);

    /// Waits until a worker wants what the last claim does not answer. Cancellation safe.
    fn wanted(&self, store: usize) -> impl Future<Output = ()> + Send;

    /// Returns the present workers; `None` without any.
    fn presence(&self) -> Option<Presence>;
}

/// Starts the loops, once.
pub(crate) async fn start_claims<T: Takers>(remote: &Arc<Remote>, takers: &Arc<T>) {
    let spawn = |loops: &mut JoinSet<()>, store| {
        let context = Arc::clone(remote.store(store));
        let claims = Arc::clone(&context);
        let claimer = TakersClaimer::new(Arc::clone(remote), store, Arc::clone(takers));
        let claiming = Arc::clone(takers);
        loops.spawn(async move {
            let error = match panics::catch_future(claim::run(claims, claimer)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error,
                Err(panic) => Error::new(
                    ErrorKind::Internal,
                    format!("the claim loop for workers has panicked: {panic}"),
                )
                .remedy("restart the server: its workers get no more jobs"),
            };
            claiming.failed(store, &error, true);
        });
        let takers = Arc::clone(takers);
        loops.spawn(async move {
            let announced =
                announce::run_with(&context, |host| Some(info(&context, host, takers.presence()?)));
            tokio::select! {
                never = announced => match never {},
                () = context.runner.stop.cancelled() => {}
            }
        });
    };
    remote.spawn_once(spawn).await;
}

/// Returns the announcement: the slots are those of the workers.
fn info(context: &StoreContext, host: &str, presence: Presence) -> RunnerInfo {
    let now = context.runner.clock().elapsed();
    let running = presence.queues.iter().map(|(_, running, _)| running).sum();
    let queues = presence.queues.iter().map(|(queue, running, free)| {
        let policy = QueuePolicy { concurrency: running + free, ..queue.policy.clone() };
        announce::queue_info(&queue.name, &policy, &queue.recent, *running, now)
    });
    RunnerInfo {
        queues: queues.collect(),
        workers: presence.workers,
        ..announce::process_info(context, host, running + presence.free, running)
    }
}

/// Claims what workers wait for.
struct TakersClaimer<T> {
    remote: Arc<Remote>,
    context: Arc<StoreContext>,
    store: usize,
    takers: Arc<T>,
    /// The queues that this loop listens to.
    queues: HashSet<QueueName>,
    has_new_queues: bool,
}

impl<T: Takers> TakersClaimer<T> {
    fn new(remote: Arc<Remote>, store: usize, takers: Arc<T>) -> Self {
        let context = Arc::clone(remote.store(store));
        let (queues, has_new_queues) = (HashSet::new(), false);
        Self { remote, context, store, takers, queues, has_new_queues }
    }

    async fn claim(&mut self, demand: &Demand, timer: &mut ClaimTimer) -> Result<Left> {
        if self.queues.len() > MAX_QUEUES {
            self.queues.clear();
        }
        for (queue, ..) in &demand.wants {
            if !self.queues.contains(&queue.name) {
                self.declare(queue).await?;
                self.queues.insert(queue.name.clone());
                self.has_new_queues = true;
            }
        }
        let context = &self.context;
        let sent_at = context.leases.clock.now();
        let want = |(queue, max, lease_for): &(Arc<RemoteQueue>, usize, Duration)| {
            Want::new(queue.name.clone(), *max, *lease_for)
        };
        let wants: Vec<_> = demand.wants.iter().map(want).collect();
        let claimed = claim::claim(context, &wants, demand.limit, timer).await?;
        let Claimed { jobs, next_due, now, .. } = claimed;
        let is_empty = jobs.is_empty();
        timer.last_claim_empty = is_empty;
        // A worker may come at any time.
        timer.saturated = true;
        let started = timer.to_store(context.runner.now());
        let held_for = context.leases.clock.now().saturating_sub(sent_at);
        let jobs = self.before_runs(demand, jobs, held_for, started).await;
        let is_all = next_due.is_none_or(|due| due > now);
        self.takers.take(self.store, jobs, is_all);
        Ok(Left::after(is_empty, next_due, now))
    }

    /// Declares a queue's limits, if it has any here. Without them, those of other programs stay.
    async fn declare(&self, queue: &RemoteQueue) -> Result<()> {
        let StoreContext { runner, store, .. } = &*self.context;
        let is_configured = runner.client.queues.contains_key(&queue.name);
        if !store.capabilities().flow || !(is_configured || queue.policy.flow.is_limited()) {
            return Ok(());
        }
        flow::declare_queue(runner, store, &queue.name, queue.policy.flow).await
    }

    /// Returns the jobs that run. Settles the others: they are too late, or have lost too many
    /// leases.
    async fn before_runs(
        &self,
        demand: &Demand,
        jobs: Vec<LeasedJob>,
        held_for: Duration,
        started: Timestamp,
    ) -> Vec<Taken> {
        let (mut runs, mut ended, mut expired) = (Vec::new(), Vec::new(), Vec::new());
        for leased in jobs {
            let wanted = demand.wants.iter().find(|(queue, ..)| queue.name == leased.job.queue);
            let Some((queue, _, lease_for)) = wanted else {
                tracing::error!(queue = %leased.job.queue, "a claim returned a job not claimed");
                continue;
            };
            let (queue, lease_for) = (Arc::clone(queue), *lease_for);
            if held_for >= lease_for {
                tracing::warn!(%queue.name, id = %leased.job.id, "{EXPIRED_IN_CLAIM}");
                expired.push(leased.lease());
                continue;
            }
            let taken = Taken { queue, leased, lease_for };
            let mut before = Box::pin(self.before_run(taken, started));
            // Only a job that moves to another queue takes time, and delays no other.
            match (&mut before).now_or_never() {
                Some(Ok(taken)) => runs.push(taken),
                Some(Err(settlement)) => ended.extend(settlement),
                None => {
                    let (remote, store) = (Arc::clone(&self.remote), self.store);
                    let expires = self.context.runner.clock().sleep(lease_for);
                    self.remote.spawn_settling(async move {
                        tokio::select! {
                            ended = before => {
                                let ended = ended.err().flatten();
                                remote.settle_in_background(store, ended.into_iter().collect());
                            }
                            () = expires => {}
                        }
                    });
                }
            }
        }
        self.remote.release(self.store, expired);
        self.remote.settle_in_background(self.store, ended);
        runs
    }

    /// Returns the job if it runs, otherwise its settlement, or none if the lease is lost.
    fn before_run(
        &self,
        taken: Taken,
        started: Timestamp,
    ) -> impl Future<Output = std::result::Result<Taken, Option<Settlement>>> + Send + use<T> {
        let (remote, store) = (Arc::clone(&self.remote), self.store);
        async move {
            let signals = RunSignals {
                cancelled: CancellationToken::new(),
                superseded: CancellationToken::new(),
                may_end_job: Arc::default(),
            };
            let start = Start { started, waited_for_slot: false };
            let rules = remote.rules(store, &taken.queue.policy);
            let (context, job) = (remote.store(store), &taken.leased.job);
            match before_run(context, &rules, job, start, &signals).await {
                Before::Runs => Ok(taken),
                Before::Ends(verdict) => {
                    Err(verdict.map(|verdict| Settlement::new(taken.leased.lease(), verdict)))
                }
            }
        }
    }
}

impl<T: Takers> Claimer for TakersClaimer<T> {
    async fn claim_due(&mut self, timer: &mut ClaimTimer) -> Result<()> {
        // No queue has slots of its own here, so no hint is for them.
        timer.own_full = true;
        loop {
            let demand = self.takers.demand(self.store);
            if demand.limit == 0 {
                timer.no_slot_is_free();
                return Ok(());
            }
            let runner = Arc::clone(&self.context.runner);
            match self.claim(&demand, timer).await {
                Ok(Left::DueJobs) if !runner.stop.is_cancelled() => timer.no_job_withheld(),
                Ok(Left::DueJobs | Left::NothingDue) => {
                    timer.no_job_withheld();
                    return Ok(());
                }
                Ok(Left::WithheldJob(now)) => {
                    timer.job_withheld(now, runner.settings.sweep);
                    return Ok(());
                }
                Err(error) => {
                    self.takers.failed(self.store, &error, false);
                    return Err(error);
                }
            }
        }
    }

    async fn freed(&self) {
        self.takers.wanted(self.store).await;
    }

    fn changed_queues(&mut self) -> Option<Vec<QueueName>> {
        let has_changed = std::mem::take(&mut self.has_new_queues);
        has_changed.then(|| self.queues.iter().cloned().collect())
    }
}
