//! The runner for workers in other processes: settles and renews their jobs.
//!
//! The workers hold the leases and renew them themselves, so nothing is kept here that a restart
//! would lose.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ahead::BATCH;
use super::announce;
use super::events::{Event, Observer, Observers};
use super::flow;
use super::recent::RecentRuns;
use super::shared::RunnerShared;
use super::slots::Slots;
use super::store::{StoreContext, report_settled};
use super::verdict::VerdictRules;
use crate::backend::{Backend, Lease, Renewal, Renewed, Settled, Settlement, Verdict};
use crate::client::ClientShared;
use crate::clock::Clock;
use crate::config::QueuePolicy;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Escalation, Outcome, StateMap};
use crate::model::{Job, JobRef, JobView, QueueName, Timestamp};
use crate::sync::lock;

/// Time for the claims and settlements in progress to end at a stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A queue from which workers claim.
#[derive(Debug)]
pub(crate) struct RemoteQueue {
    pub(crate) name: QueueName,
    pub(crate) policy: QueuePolicy,
    pub(super) recent: RecentRuns,
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
    /// The runtime on which the claims run; set when they start.
    runtime: OnceLock<Handle>,
}

impl Remote {
    pub(crate) fn new(client: &Arc<ClientShared>, observers: Vec<Arc<dyn Observer>>) -> Self {
        let observers = Observers(observers);
        let name = client.runner_name(&format!("serve-{}", std::process::id()));
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

    pub(super) fn store(&self, number: usize) -> &Arc<StoreContext> {
        &self.stores[number]
    }

    /// Calls `spawn` with each store's number, to start its loops. Later calls start none.
    pub(super) async fn spawn_once(&self, spawn: impl Fn(&mut JoinSet<()>, usize)) {
        if self.runtime.get().is_some() {
            return;
        }
        let mut loops = self.loops.lock().await;
        if self.runtime.set(Handle::current()).is_ok() {
            (0..self.stores()).for_each(|store| spawn(&mut loops, store));
        }
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

    pub(super) fn rules<'a>(&'a self, store: usize, policy: &'a QueuePolicy) -> VerdictRules<'a> {
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
    pub(super) fn settle_in_background(
        self: &Arc<Self>,
        store: usize,
        settlements: Vec<Settlement>,
    ) {
        if settlements.is_empty() {
            return;
        }
        let remote = Arc::clone(self);
        self.spawn_settling(async move {
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
        });
    }

    /// Runs a settlement for which no worker waits; a stop waits for it.
    pub(super) fn spawn_settling(&self, settling: impl Future<Output = ()> + Send + 'static) {
        // Without claims there are no such settlements.
        if let Some(runtime) = self.runtime.get() {
            self.settlements.spawn_on(settling, runtime);
        }
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
