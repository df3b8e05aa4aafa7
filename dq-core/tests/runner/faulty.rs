//! A store that hangs, is slow, or fails on demand.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dq_core::config::{BackendConfig, Environment};
use dq_core::{
    Backend, Capabilities, ClaimParams, Claimed, Clock, DeadReason, Error, ErrorKind, Finding, Job,
    Layer, MemoryBackend, NewJob, QueueName, Renewal, Renewed, Result, Scheduled, Settled,
    Settlement, Severity, Timestamp, Verdict, VirtualClock, Wakeups, async_trait,
};

#[derive(Debug, Default, Clone)]
pub(crate) struct Faults {
    pub(crate) claims_hang: bool,
    pub(crate) is_incompatible: bool,
    pub(crate) renewals_hang: bool,
    /// How many `renew` calls hang before `renewals_hang` counts.
    pub(crate) renewals_lost: u32,
    /// Delay for each claim with jobs, renewal or settlement.
    pub(crate) calls_take: Duration,
    /// Advances the clock before answering a claim with jobs.
    pub(crate) claims_take: Duration,
    pub(crate) listen_hangs: bool,
    pub(crate) listen_takes: Duration,
    /// Each claim reports a due job that no claim returns.
    pub(crate) reports_ghost: bool,
    /// Moves the time of day ahead before answering the first claim with jobs.
    pub(crate) claim_jumps: Duration,
    /// How many `settle` calls take effect without an answer.
    pub(crate) settlements_unanswered: u32,
    /// How many `settle` calls fail, and how.
    pub(crate) settlements_fail: Option<(u32, ErrorKind)>,
    /// Rejects a `settle` call with a skipped job.
    pub(crate) refuses_skips: bool,
    pub(crate) lacks_again: bool,
    pub(crate) has_finding: bool,
    pub(crate) quarantined: Vec<(Job, DeadReason)>,
    /// A correct store holds an early claim until the jobs are due; this one answers at once,
    /// without jobs.
    pub(crate) claim_ahead: Duration,
    /// How many schedule calls take effect but fail with `OutcomeUnknown`.
    pub(crate) schedule_results_lost: u32,
}

#[derive(Debug)]
pub(crate) struct FaultyStore {
    inner: MemoryBackend,
    clock: Arc<VirtualClock>,
    pub(crate) claims: AtomicU32,
    pub(crate) claim_times: Mutex<Vec<Timestamp>>,
    faults: Mutex<Faults>,
}

impl FaultyStore {
    pub(crate) fn new(clock: &Arc<VirtualClock>, faults: Faults) -> Arc<Self> {
        Self::with_own_clock(clock, clock, faults)
    }

    /// The store's time comes from `own`, call durations from `clock`.
    pub(crate) fn with_own_clock(
        clock: &Arc<VirtualClock>,
        own: &Arc<VirtualClock>,
        faults: Faults,
    ) -> Arc<Self> {
        let inner = MemoryBackend::new(own.clone());
        Arc::new(Self {
            inner,
            clock: clock.clone(),
            claims: AtomicU32::new(0),
            claim_times: Mutex::default(),
            faults: Mutex::new(faults),
        })
    }

    fn faults(&self) -> Faults {
        self.faults.lock().unwrap().clone()
    }

    async fn take_time(&self) {
        self.clock.sleep(self.faults().calls_take).await;
    }
}

fn take_one(faults: &mut u32) -> bool {
    let is_left = *faults > 0;
    *faults -= u32::from(is_left);
    is_left
}

#[async_trait]
impl Layer for FaultyStore {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }

    fn name(&self) -> &'static str {
        "faulty"
    }

    fn capabilities(&self) -> Capabilities {
        // Calls to a durable store are repeated if their outcome is unknown.
        let mut capabilities = self.inner.capabilities();
        capabilities.durable = true;
        capabilities.again = !self.faults().lacks_again;
        capabilities
    }

    fn claim_ahead(&self) -> Duration {
        self.faults().claim_ahead
    }

    async fn check(&self) -> Vec<Finding> {
        let finding = Finding {
            severity: Severity::Warning,
            code: "faulty.finding",
            cause: "a cause".to_owned(),
            remedy: "a remedy".to_owned(),
        };
        self.faults().has_finding.then_some(finding).into_iter().collect()
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let results = self.inner.schedule(jobs).await;
        let mut faults = self.faults.lock().unwrap();
        if faults.schedule_results_lost > 0 {
            faults.schedule_results_lost -= 1;
            return Err(Error::new(ErrorKind::OutcomeUnknown, "the result was lost"));
        }
        results
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        if self.faults().listen_hangs {
            std::future::pending::<()>().await;
        }
        self.clock.sleep(self.faults().listen_takes).await;
        self.inner.listen(queues).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        if self.faults().is_incompatible {
            return Err(Error::new(ErrorKind::Incompatible, "this version is too old"));
        }
        if params.limit > 0 {
            self.claim_times.lock().unwrap().push(self.clock.now());
        }
        if self.faults().claims_hang {
            std::future::pending::<()>().await;
        }
        let mut claimed = Backend::claim(&self.inner, params).await?;
        claimed.quarantined = std::mem::take(&mut self.faults.lock().unwrap().quarantined);
        if self.faults().reports_ghost {
            claimed.next_due = Some(claimed.now);
        }
        if !claimed.jobs.is_empty() {
            self.clock.advance(self.faults().claims_take);
            let jump = std::mem::take(&mut self.faults.lock().unwrap().claim_jumps);
            self.clock.jump(self.clock.now() + jump);
            self.take_time().await;
        }
        Ok(claimed)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.take_time().await;
        if let Some((remaining @ 1.., kind)) = &mut self.faults.lock().unwrap().settlements_fail {
            *remaining -= 1;
            return Err(Error::new(*kind, "injected fault"));
        }
        let is_skip = |settlement: &Settlement| matches!(settlement.verdict, Verdict::Skip { .. });
        if self.faults().refuses_skips && settlements.iter().any(is_skip) {
            return Err(Error::new(ErrorKind::Internal, "injected fault"));
        }
        let settled = self.inner.settle(settlements).await;
        if take_one(&mut self.faults.lock().unwrap().settlements_unanswered) {
            std::future::pending::<()>().await;
        }
        settled
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let is_lost = take_one(&mut self.faults.lock().unwrap().renewals_lost);
        if self.faults().renewals_hang || is_lost {
            std::future::pending::<()>().await;
        }
        self.take_time().await;
        self.inner.renew(renewals).await
    }
}

/// Wraps an open store for `DqBuilder::drain`, which takes only settings.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct OpenStore {
    #[serde(skip)]
    store: Option<Arc<dyn Backend>>,
}

impl OpenStore {
    pub(crate) fn new(store: Arc<dyn Backend>) -> Box<Self> {
        Box::new(Self { store: Some(store) })
    }
}

#[typetag::deserialize(name = "test-open-store")]
#[async_trait]
impl BackendConfig for OpenStore {
    async fn connect(&self, _: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(self.store.clone().expect("created by `new`"))
    }
}
