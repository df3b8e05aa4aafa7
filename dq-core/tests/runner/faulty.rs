//! A store that hangs, is slow, or fails on demand.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dq_core::config::{BackendConfig, Environment};
use dq_core::{
    Backend, Capabilities, ClaimParams, Claimed, Clock, Error, ErrorKind, Layer, MemoryBackend,
    NewJob, Renewal, Renewed, Result, Scheduled, Settled, Settlement, Timestamp, VirtualClock,
    async_trait,
};

/// The faults of a store.
#[derive(Debug, Default, Clone)]
pub(crate) struct Faults {
    pub(crate) claims_hang: bool,
    pub(crate) renewals_hang: bool,
    /// Advances the clock by this before a claim with jobs is answered.
    pub(crate) claims_take: Duration,
    /// This many calls of `settle` fail with this kind of error.
    pub(crate) settlements_fail: Option<(u32, ErrorKind)>,
    /// The `claim_ahead` of the store. A correct store would hold the claim until the jobs are due;
    /// this one answers at once, without jobs.
    pub(crate) claim_ahead: Duration,
    /// This many schedule calls take effect but fail with `OutcomeUnknown`.
    pub(crate) schedule_results_lost: u32,
}

/// A memory store with faults.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    inner: MemoryBackend,
    clock: Arc<VirtualClock>,
    /// Number of calls of `claim`.
    pub(crate) claims: AtomicU32,
    /// The times of all claims for at least one job.
    pub(crate) claim_times: Mutex<Vec<Timestamp>>,
    faults: Mutex<Faults>,
}

impl FaultyStore {
    pub(crate) fn new(clock: &Arc<VirtualClock>, faults: Faults) -> Arc<Self> {
        let inner = MemoryBackend::new(clock.clone());
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
        capabilities
    }

    fn claim_ahead(&self) -> Duration {
        self.faults().claim_ahead
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

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        if params.limit > 0 {
            self.claim_times.lock().unwrap().push(self.clock.now());
        }
        if self.faults().claims_hang {
            std::future::pending::<()>().await;
        }
        let claimed = Backend::claim(&self.inner, params).await?;
        if !claimed.jobs.is_empty() {
            self.clock.advance(self.faults().claims_take);
        }
        Ok(claimed)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        if let Some((remaining @ 1.., kind)) = &mut self.faults.lock().unwrap().settlements_fail {
            *remaining -= 1;
            return Err(Error::new(*kind, "injected fault"));
        }
        self.inner.settle(settlements).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        if self.faults().renewals_hang {
            std::future::pending::<()>().await;
        }
        self.inner.renew(renewals).await
    }
}

/// Settings of a store that is already open, for `DqBuilder::drain`, which takes only settings.
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

/// Sets the time of day back.
pub(crate) fn set_back(clock: &VirtualClock, by: Duration) {
    clock.set(clock.now() - by);
}
