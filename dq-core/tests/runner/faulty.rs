//! A memory store that hangs, is slow, or fails on demand, and counts its calls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::config::{BackendConfig, Environment};
use dq_core::{
    Announcement, Backend, Capabilities, ClaimParams, Claimed, Clock, DeadReason, Error, ErrorKind,
    Finding, Job, Layer, Lease, MemoryBackend, QueueName, Renewal, Renewed, Result, Settled,
    Settlement, Severity, SqlStatement, Timestamp, Verdict, VirtualClock, Wakeups, async_trait,
};

#[derive(Debug, Default, Clone)]
pub(crate) struct Faults {
    pub(crate) is_away: bool,
    pub(crate) cancel_fails: bool,
    /// Limits cannot be declared.
    pub(crate) operate_is_forbidden: bool,
    pub(crate) is_incompatible: bool,
    pub(crate) lacks_again: bool,
    pub(crate) lacks_registry: bool,
    pub(crate) lacks_flow: bool,
    pub(crate) lacks_groups: bool,
    pub(crate) has_finding: bool,
    pub(crate) quarantined: Vec<(Job, DeadReason)>,
    pub(crate) claims_hang: bool,
    /// Each claim reports a due job that no claim returns.
    pub(crate) reports_ghost: bool,
    /// Delay for each claim with jobs, renewal or settlement.
    pub(crate) calls_take: Duration,
    /// Advances the clock before answering a claim with jobs.
    pub(crate) claims_take: Duration,
    /// Moves the time of day ahead before answering the first claim with jobs.
    pub(crate) claim_jumps: Duration,
    /// A correct store holds an early claim until the jobs are due; this one answers at once,
    /// without jobs.
    pub(crate) claim_ahead: Duration,
    pub(crate) listen_hangs: bool,
    pub(crate) listen_takes: Duration,
    pub(crate) listen_fails: bool,
    /// A method that panics.
    pub(crate) panics_in: &'static str,
    pub(crate) renewals_hang: bool,
    pub(crate) renewals_lost: u32,
    pub(crate) settlements_unanswered: u32,
    /// How many `settle` calls fail, and how.
    pub(crate) settlements_fail: Option<(u32, ErrorKind)>,
    /// Rejects a `settle` call with a skipped job.
    pub(crate) refuses_skips: bool,
    /// Answers only the first announcement.
    pub(crate) announcements_hang: bool,
}

#[derive(Debug)]
pub(crate) struct FaultyStore {
    inner: MemoryBackend,
    /// The runner's clock, by which calls take time.
    clock: Arc<VirtualClock>,
    faults: Mutex<Faults>,
    calls: Mutex<BTreeMap<&'static str, u32>>,
    /// The times of the claims for at least one job.
    pub(crate) claim_times: Mutex<Vec<Timestamp>>,
}

impl FaultyStore {
    pub(crate) fn new(
        clock: &Arc<VirtualClock>,
        store_clock: &Arc<VirtualClock>,
        faults: Faults,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryBackend::new(store_clock.clone()),
            clock: clock.clone(),
            faults: Mutex::new(faults),
            calls: Mutex::default(),
            claim_times: Mutex::default(),
        })
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock().unwrap());
    }

    pub(crate) fn calls(&self, method: &str) -> u32 {
        self.calls.lock().unwrap().get(method).copied().unwrap_or_default()
    }

    fn faults(&self) -> Faults {
        self.faults.lock().unwrap().clone()
    }
}

fn take_one(faults: &mut u32) -> bool {
    let is_left = *faults > 0;
    *faults -= u32::from(is_left);
    is_left
}

async fn hang_if(hangs: bool) {
    if hangs {
        std::future::pending::<()>().await;
    }
}

#[async_trait]
impl Layer for FaultyStore {
    fn done_statement(&self, lease: &Lease) -> Result<SqlStatement> {
        Ok(SqlStatement::of_lease("SELECT done($1)", lease))
    }

    fn inner(&self) -> &dyn Backend {
        &self.inner
    }

    fn name(&self) -> &'static str {
        "faulty"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.again = !self.faults().lacks_again;
        capabilities.registry = !self.faults().lacks_registry;
        capabilities.flow = !self.faults().lacks_flow;
        capabilities.groups = !self.faults().lacks_groups;
        capabilities
    }

    fn claim_ahead(&self) -> Duration {
        self.faults().claim_ahead
    }

    async fn before(&self, method: &'static str) -> Result<()> {
        *self.calls.lock().unwrap().entry(method).or_default() += 1;
        let faults = self.faults();
        assert_ne!(method, faults.panics_in, "a bug in the store");
        let fails = match method {
            "claim" | "stats" => faults.is_away,
            "cancel" => faults.cancel_fails,
            "listen" => faults.listen_fails,
            _ => false,
        };
        if method == "operate" && faults.operate_is_forbidden {
            return Err(Error::new(ErrorKind::Config, "no right to declare limits"));
        }
        if fails {
            return Err(Error::new(ErrorKind::Unavailable, "the store is away"));
        }
        Ok(())
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

    async fn listen(&self, queues: &[QueueName], worker: &str) -> Result<Wakeups> {
        hang_if(self.faults().listen_hangs).await;
        self.clock.sleep(self.faults().listen_takes).await;
        self.inner.listen(queues, worker).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        if self.faults().is_incompatible {
            return Err(Error::new(ErrorKind::Incompatible, "this version is too old"));
        }
        if params.limit > 0 {
            self.claim_times.lock().unwrap().push(self.clock.now());
        }
        hang_if(self.faults().claims_hang).await;
        let mut claimed = Backend::claim(&self.inner, params).await?;
        claimed.quarantined = std::mem::take(&mut self.faults.lock().unwrap().quarantined);
        if self.faults().reports_ghost {
            claimed.next_due = Some(claimed.now);
        }
        if !claimed.jobs.is_empty() {
            self.clock.advance(self.faults().claims_take);
            let jump = std::mem::take(&mut self.faults.lock().unwrap().claim_jumps);
            self.clock.jump(self.clock.now() + jump);
            self.clock.sleep(self.faults().calls_take).await;
        }
        Ok(claimed)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.clock.sleep(self.faults().calls_take).await;
        if let Some((remaining @ 1.., kind)) = &mut self.faults.lock().unwrap().settlements_fail {
            *remaining -= 1;
            return Err(Error::new(*kind, "injected fault"));
        }
        let is_skip = |settlement: &Settlement| matches!(settlement.verdict, Verdict::Skip { .. });
        if self.faults().refuses_skips && settlements.iter().any(is_skip) {
            return Err(Error::new(ErrorKind::Internal, "injected fault"));
        }
        let settled = self.inner.settle(settlements).await;
        let is_unanswered = take_one(&mut self.faults.lock().unwrap().settlements_unanswered);
        hang_if(is_unanswered).await;
        settled
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let is_lost = take_one(&mut self.faults.lock().unwrap().renewals_lost);
        hang_if(is_lost || self.faults().renewals_hang).await;
        self.clock.sleep(self.faults().calls_take).await;
        self.inner.renew(renewals).await
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        hang_if(self.faults().announcements_hang && self.calls("announce") > 1).await;
        self.inner.announce(announcement).await
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
