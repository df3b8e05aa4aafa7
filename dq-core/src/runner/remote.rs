//! Claims jobs for workers in other processes, and settles them, by the rules of a runner.
//!
//! The workers hold the leases and renew them themselves, so nothing is kept here that a restart
//! would lose.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ahead::BATCH;
use super::announce;
use super::before::before_run;
use super::claim::{self, Claimer, Left};
use super::claim_timer::ClaimTimer;
use super::events::{Event, Observer, Observers};
use super::flow;
use super::recent::RecentRuns;
use super::shared::RunnerShared;
use super::slots::Slots;
use super::start::EXPIRED_IN_CLAIM;
use super::store::{Before, RunSignals, Start, StoreContext, report_settled};
use super::verdict::VerdictRules;
use crate::backend::{
    Backend, Claimed, Lease, LeasedJob, Renewal, Renewed, Settled, Settlement, Verdict, Want,
};
use crate::client::{ClientShared, RunnerNameGuard};
use crate::clock::Clock;
use crate::config::QueuePolicy;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Escalation, Outcome, StateMap, panics};
use crate::model::{Job, JobRef, JobView, QueueName, RunnerInfo, Timestamp, WorkerInfo};
use crate::sync::lock;

/// Time for the claims and settlements in progress to end at a stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A loop that listens to more queues begins anew with those in demand.
const MAX_QUEUES: usize = 10_000;

/// A queue from which workers claim.
#[derive(Debug)]
pub(crate) struct RemoteQueue {
    pub(crate) name: QueueName,
    pub(crate) policy: QueuePolicy,
    recent: RecentRuns,
}

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

/// One runner for all workers of a process, over all stores.
#[derive(Debug)]
pub(crate) struct Remote {
    runner: Arc<RunnerShared>,
    stores: Vec<Arc<StoreContext>>,
    queues: Mutex<HashMap<QueueName, Arc<RemoteQueue>>>,
    escalation: Escalation,
    loops: tokio::sync::Mutex<JoinSet<()>>,
    /// Settlements that no worker waits for.
    settlements: TaskTracker,
    runtime: OnceLock<Handle>,
    _name: RunnerNameGuard,
}

impl Remote {
    pub(crate) fn new(client: &Arc<ClientShared>, observers: Vec<Arc<dyn Observer>>) -> Self {
        let observers = Observers(observers);
        let (name, guard) = loop {
            let random = client.environment.entropy.bits() & 0xffff_ffff;
            let name = format!("serve-{}-{random:08x}", std::process::id());
            if let Ok(guard) = client.reserve_runner_name(&name) {
                break (name, guard);
            }
        };
        let clock = &client.environment.clock;
        let runner = Arc::new(RunnerShared {
            name: name.into(),
            is_restricted: true,
            queues: Vec::new(),
            index_of: HashMap::new(),
            slots: Arc::new(Slots::new(0, Vec::new(), 1, Arc::clone(clock), observers.clone())),
            middleware: Vec::new(),
            state: Arc::new(StateMap::default()),
            client: Arc::clone(client),
            observers,
            built_at: clock.now(),
            settings: client.runner.clone(),
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
        });
        let settlements = TaskTracker::new();
        let context = |store: &Arc<_>| {
            StoreContext::new(Arc::clone(&runner), Arc::clone(store), 0, settlements.clone()).0
        };
        Self {
            stores: client.stores.iter().map(context).collect(),
            runner,
            queues: Mutex::default(),
            escalation: Escalation::default(),
            loops: tokio::sync::Mutex::default(),
            settlements,
            runtime: OnceLock::new(),
            _name: guard,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.runner.name
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.runner.clock()
    }

    pub(crate) const fn stores(&self) -> usize {
        self.stores.len()
    }

    /// Returns the time by the main store's clock, without asking it.
    pub(crate) fn now(&self) -> Timestamp {
        let skew = lock(&self.stores[0].skew).unwrap_or_default();
        Timestamp::from_millis(self.runner.now().as_millis().saturating_add(skew))
    }

    /// Returns a queue with its settings from the configuration.
    pub(crate) fn queue(&self, name: &QueueName) -> Result<Arc<RemoteQueue>> {
        let mut queues = lock(&self.queues);
        if let Some(queue) = queues.get(name) {
            return Ok(Arc::clone(queue));
        }
        let client = &self.runner.client;
        let settings = client.queues.get(name).cloned().unwrap_or_default();
        let policy = settings.over(client.defaults.clone()).policy(name)?;
        let queue = RemoteQueue { name: name.clone(), policy, recent: RecentRuns::new() };
        // A queue that nobody uses any more is only here.
        queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        let queue = Arc::new(queue);
        queues.insert(name.clone(), Arc::clone(&queue));
        Ok(queue)
    }

    /// Returns a queue from which workers may claim.
    ///
    /// # Errors
    /// `Unsupported` if it has limits that the store does not keep.
    pub(crate) fn claimable(&self, name: &QueueName) -> Result<Arc<RemoteQueue>> {
        let queue = self.queue(name)?;
        flow::expect_supported(name, &queue.policy.flow, &self.runner.client.stores.main)?;
        Ok(queue)
    }

    /// Starts the loops, once.
    pub(crate) async fn start<T: Takers>(self: &Arc<Self>, takers: &Arc<T>) {
        if self.runtime.get().is_some() {
            return;
        }
        let mut loops = self.loops.lock().await;
        if self.runtime.set(Handle::current()).is_err() {
            return;
        }
        for (store, context) in self.stores.iter().enumerate() {
            let (claims, context) = (Arc::clone(context), Arc::clone(context));
            let remote = Arc::clone(self);
            let claimer = TakersClaimer::new(remote, store, Arc::clone(takers));
            let claiming = Arc::clone(takers);
            loops.spawn(async move {
                let error = match panics::catch_future(claim::run(claims, claimer)).await {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error,
                    Err(panic) => Error::new(
                        ErrorKind::Internal,
                        format!("the claim loop for workers has panicked: {panic}"),
                    ),
                };
                claiming.failed(store, &error, true);
            });
            let takers = Arc::clone(takers);
            loops.spawn(async move {
                let announced = announce::run_with(&context, |host| {
                    Some(info(&context, host, takers.presence()?))
                });
                tokio::select! {
                    never = announced => match never {},
                    () = context.runner.stop.cancelled() => {}
                }
            });
        }
    }

    /// Ends the loops, when they have done what they are doing.
    pub(crate) fn stop_token(&self) -> CancellationToken {
        self.runner.stop.clone()
    }

    /// Ends the loops, and waits for them and for settlements that no worker waits for.
    pub(crate) async fn stop(&self) {
        self.runner.stop.cancel();
        let mut loops = self.loops.lock().await;
        let ended = async {
            while loops.join_next().await.is_some() {}
            self.settlements.close();
            self.settlements.wait().await;
        };
        tokio::select! {
            () = ended => {}
            () = self.runner.clock().sleep(STOP_TIMEOUT) => {
                tracing::warn!("jobs claimed for workers could not be given back in time");
            }
        }
        let stores: Vec<_> = self.stores.iter().map(|context| Arc::clone(&context.store)).collect();
        if self.runtime.get().is_some() {
            announce::withdraw(&self.runner, &stores).await;
        }
    }

    fn rules<'a>(&'a self, store: usize, policy: &'a QueuePolicy) -> VerdictRules<'a> {
        VerdictRules {
            policy,
            escalation: &self.escalation,
            schema_version: None,
            limits: &self.runner.client.limits,
            entropy: &self.runner.client.environment.entropy,
            store: &self.stores[store].store,
        }
    }

    /// Decides what a run of a worker leads to. `Err` is the text of a failure.
    ///
    /// # Errors
    /// `InvalidInput` if the outcome is not possible, for example a delay beyond the horizon.
    pub(crate) fn verdict(
        &self,
        store: usize,
        job: &Job,
        result: std::result::Result<&Outcome, &str>,
    ) -> Result<Verdict> {
        let queue = self.queue(&job.queue)?;
        let rules = self.rules(store, &queue.policy);
        match result {
            Ok(outcome) => {
                let verdict = rules.after_outcome(job, outcome, self.now());
                verdict.map_err(|problem| Error::invalid(problem).operation("settle"))
            }
            Err(error) => Ok(rules.failed(job, error.to_owned(), Duration::ZERO)),
        }
    }

    /// Settles leases of one store. One that the store refuses has an error of its own.
    ///
    /// # Errors
    /// `Unavailable`, `OutcomeUnknown` or `Closed`: some of them may be settled.
    pub(crate) async fn settle(
        &self,
        store: usize,
        settlements: &[Settlement],
    ) -> Result<Vec<Result<Settled>>> {
        let mut results = Vec::with_capacity(settlements.len());
        for batch in settlements.chunks(BATCH) {
            match self.settle_batch(store, batch).await {
                Ok(settled) => results.extend(settled.into_iter().map(Ok)),
                Err(error) if is_of_call(&error) => return Err(error),
                Err(error) if batch.len() == 1 => results.push(Err(error)),
                Err(_) => {
                    for one in batch.chunks(1) {
                        match self.settle_batch(store, one).await {
                            Err(error) if is_of_call(&error) => return Err(error),
                            settled => results.push(settled.map(|settled| settled[0])),
                        }
                    }
                }
            }
        }
        Ok(results)
    }

    async fn settle_batch(&self, store: usize, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let settled = self.stores[store].store.settle(batch);
        let settled = self.runner.call("settle", settled).await;
        self.observe_failure(settled)
    }

    /// Reports a settlement; `repeated` has the meaning of [`Event::Settled::repeated`].
    pub(crate) fn report(
        &self,
        job: &Job,
        settlement: &Settlement,
        settled: Settled,
        repeated: bool,
    ) {
        if let (Verdict::Dead { reason, .. }, Settled::Accepted) = (&settlement.verdict, settled) {
            self.runner.observers.notify(&Event::Dead { job, reason });
        }
        report_settled(&self.runner, settlement, settled, repeated);
    }

    pub(crate) async fn renew(&self, store: usize, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let mut results = Vec::with_capacity(renewals.len());
        for batch in renewals.chunks(BATCH) {
            let renewed = self.runner.call("renew", self.stores[store].store.renew(batch)).await;
            results.extend(self.observe_failure(renewed)?);
        }
        self.runner.observers.notify(&Event::Renewed { leases: results.len() });
        Ok(results)
    }

    /// Returns a job whose lease is lost, if the store can tell.
    pub(crate) async fn find(&self, store: usize, lease: &Lease) -> Result<Option<JobView>> {
        let store = &self.stores[store].store;
        if !store.capabilities().browse {
            return Ok(None);
        }
        let job = JobRef::new(lease.queue.clone(), lease.job);
        self.observe_failure(self.runner.call("get", store.get(&job)).await)
    }

    /// Hands jobs back that no worker has got.
    pub(crate) fn release(self: &Arc<Self>, store: usize, leases: impl IntoIterator<Item = Lease>) {
        let release = |lease| Settlement::new(lease, Verdict::Release { started: false });
        self.settle_in_background(store, leases.into_iter().map(release).collect());
    }

    /// Settles jobs that no worker has got. If the store does not answer, their leases expire.
    fn settle_in_background(self: &Arc<Self>, store: usize, settlements: Vec<Settlement>) {
        let Some(runtime) = self.runtime.get().filter(|_| !settlements.is_empty()) else { return };
        let remote = Arc::clone(self);
        let settle = async move {
            match remote.settle(store, &settlements).await {
                Ok(results) => {
                    for (settlement, settled) in settlements.iter().zip(results) {
                        if let Ok(settled) = settled {
                            report_settled(&remote.runner, settlement, settled, false);
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "claimed jobs wait until their leases expire");
                }
            }
        };
        self.settlements.spawn_on(settle, runtime);
    }

    fn observe_failure<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.runner.observers.notify(&Event::StoreFailed(error));
        }
        result
    }
}

impl RemoteQueue {
    /// Counts a run, with times by [`Clock::elapsed`].
    pub(crate) fn record_run(
        &self,
        lateness: Duration,
        started: Duration,
        ended: Duration,
        verdict: &Verdict,
    ) {
        self.recent.record(lateness, started, ended);
        if matches!(verdict, Verdict::Retry { .. } | Verdict::Dead { .. }) {
            self.recent.record_failure();
        }
    }
}

/// Whether an error concerns all settlements of a call.
fn is_of_call(error: &Error) -> bool {
    error.is_retryable() || error.kind() == ErrorKind::Closed
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
        let context = Arc::clone(&remote.stores[store]);
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

    /// Returns the jobs that run. Settles the others: they are too late, or have lost too many leases.
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
                    self.remote.settlements.spawn(async move {
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
            let (context, job) = (&remote.stores[store], &taken.leased.job);
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
