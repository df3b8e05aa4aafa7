//! A store whose calls are the steps of a crash point.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dq_core::{
    Backend, BrowseParams, Cancelled, ClaimParams, Claimed, Error, ErrorKind, JobRef, JobView,
    Layer, NewJob, OperateReport, Operation, Page, Reschedule, Rescheduled, Result, Scheduled,
    Settled, Settlement, async_trait,
};
use dq_testkit::faults::CrashPoint;

/// Each call is pending once before it takes effect. Reading counts and times is no step.
#[derive(Debug)]
pub(crate) struct Stepped {
    inner: Arc<dyn Backend>,
    point: CrashPoint,
    /// After the crash, all calls fail. Otherwise, later calls stand for the next process.
    dies: bool,
    is_dead: AtomicBool,
}

impl Stepped {
    pub(crate) fn over(inner: Arc<dyn Backend>, point: &CrashPoint, dies: bool) -> Arc<Self> {
        Arc::new(Self { inner, point: point.clone(), dies, is_dead: AtomicBool::new(false) })
    }

    async fn step<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let result = self.point.step(call).await;
        self.is_dead.fetch_or(self.dies && result.is_err(), Ordering::SeqCst);
        result
    }
}

#[async_trait]
impl Layer for Stepped {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn before(&self, _: &'static str) -> Result<()> {
        tokio::task::yield_now().await;
        match self.is_dead.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Unavailable, "the process has crashed")),
            false => Ok(()),
        }
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.step(self.inner.schedule(jobs)).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.step(self.inner.cancel(jobs)).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.step(self.inner.reschedule(moves)).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        // Changes nothing.
        if params.limit == 0 {
            return self.inner.claim(params).await;
        }
        self.step(self.inner.claim(params)).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.step(self.inner.settle(settlements)).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.step(self.inner.browse(params)).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.step(self.inner.get(job)).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.step(self.inner.operate(operation)).await
    }
}
