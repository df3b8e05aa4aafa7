//! A store that does odd things on demand: it hangs, is slow, or fails.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dq_core::config::{BackendConfig, Environment};
use dq_core::{
    Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed, Clock, Error, ErrorKind,
    Finding, JobRef, JobView, MemoryBackend, NewJob, OperateReport, Operation, Page, QueueName,
    QueueStats, Renewal, Renewed, Reschedule, Rescheduled, Result, Scheduled, Settled, Settlement,
    Timestamp, VirtualClock, Wakeups, async_trait,
};

/// What goes wrong.
#[derive(Debug, Default, Clone)]
pub(crate) struct Oddities {
    pub(crate) claims_hang: bool,
    pub(crate) renewals_hang: bool,
    /// Turns the clock by this before a claim that brought jobs is answered.
    pub(crate) claims_take: Duration,
    /// So many settlements fail, with this kind.
    pub(crate) settlements_fail: Option<(u32, ErrorKind)>,
    /// So long before jobs are due it may be asked for them; it gives none before their time.
    pub(crate) claim_ahead: Duration,
    /// So many schedules take effect, and their answers are lost.
    pub(crate) schedule_answers_lost: u32,
}

/// A memory store that is odd.
#[derive(Debug)]
pub(crate) struct Odd {
    pub(crate) inner: MemoryBackend,
    clock: Arc<VirtualClock>,
    pub(crate) claims: AtomicU32,
    /// When it was asked for jobs.
    pub(crate) asked: Mutex<Vec<Timestamp>>,
    oddities: Mutex<Oddities>,
}

impl Odd {
    pub(crate) fn new(clock: &Arc<VirtualClock>, oddities: Oddities) -> Arc<Self> {
        let inner = MemoryBackend::new(clock.clone());
        Arc::new(Self {
            inner,
            clock: clock.clone(),
            claims: AtomicU32::new(0),
            asked: Mutex::default(),
            oddities: Mutex::new(oddities),
        })
    }

    fn now(&self) -> Oddities {
        self.oddities.lock().unwrap().clone()
    }
}

#[async_trait]
impl Backend for Odd {
    fn name(&self) -> &'static str {
        "odd"
    }

    fn capabilities(&self) -> Capabilities {
        // As if it were far away, so that calls are repeated.
        let mut offered = self.inner.capabilities();
        offered.durable = true;
        offered
    }

    async fn now(&self) -> Result<Timestamp> {
        self.inner.now().await
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let answers = self.inner.schedule(jobs).await;
        let mut oddities = self.oddities.lock().unwrap();
        if oddities.schedule_answers_lost > 0 {
            oddities.schedule_answers_lost -= 1;
            return Err(Error::new(ErrorKind::OutcomeUnknown, "the answer was lost"));
        }
        answers
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.inner.cancel(jobs).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.inner.reschedule(moves).await
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        self.inner.listen(queues).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        if params.limit > 0 {
            self.asked.lock().unwrap().push(self.clock.now());
        }
        if self.now().claims_hang {
            std::future::pending::<()>().await;
        }
        let claimed = self.inner.claim(params).await?;
        if !claimed.jobs.is_empty() {
            self.clock.advance(self.now().claims_take);
        }
        Ok(claimed)
    }

    fn claim_ahead(&self) -> Duration {
        self.now().claim_ahead
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        if let Some((left @ 1.., kind)) = &mut self.oddities.lock().unwrap().settlements_fail {
            *left -= 1;
            return Err(Error::new(*kind, "as told"));
        }
        self.inner.settle(settlements).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        if self.now().renewals_hang {
            std::future::pending::<()>().await;
        }
        self.inner.renew(renewals).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.inner.stats(queues).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.inner.browse(params).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.inner.get(job).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.inner.operate(operation).await
    }

    async fn check(&self) -> Vec<Finding> {
        self.inner.check().await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

/// A store that is open already, where settings are wanted.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Opened {
    #[serde(skip)]
    store: Option<Arc<dyn Backend>>,
}

impl Opened {
    pub(crate) fn new(store: Arc<dyn Backend>) -> Box<Self> {
        Box::new(Self { store: Some(store) })
    }
}

#[typetag::deserialize(name = "test-opened")]
#[async_trait]
impl BackendConfig for Opened {
    async fn connect(&self, _: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(self.store.clone().expect("it is made by hand"))
    }
}

/// For tests that set the time of day.
pub(crate) fn set_back(clock: &VirtualClock, by: Duration) {
    clock.set(clock.now() - by);
}
