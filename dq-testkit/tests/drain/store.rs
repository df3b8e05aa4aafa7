//! Stores whose calls a test stops or fails one by one.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use dq_core::config::{BackendConfig, Environment};
use dq_core::sync::lock;
use dq_core::{
    Backend, Cancelled, Error, ErrorKind, JobRef, JobView, Layer, NewJob, Reschedule, Rescheduled,
    Result, Scheduled, async_trait,
};
use dq_testkit::faults::CrashPoint;
use serde::Deserialize;

/// Its calls are steps of a [`CrashPoint`], and pending once before they take effect.
#[derive(Debug)]
pub(crate) struct SteppedStore {
    inner: Arc<dyn Backend>,
    crash_point: CrashPoint,
    /// Fails with `Unavailable`.
    failing: Mutex<Option<&'static str>>,
}

impl SteppedStore {
    pub(crate) fn over(inner: Arc<dyn Backend>, crash_point: &CrashPoint) -> Arc<Self> {
        Arc::new(Self { inner, crash_point: crash_point.clone(), failing: Mutex::default() })
    }

    pub(crate) fn fail(&self, method: Option<&'static str>) {
        *lock(&self.failing) = method;
    }
}

#[async_trait]
impl Layer for SteppedStore {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn before(&self, method: &'static str) -> Result<()> {
        tokio::task::yield_now().await;
        if *lock(&self.failing) == Some(method) {
            let error = Error::new(ErrorKind::Unavailable, "the test makes this method fail");
            return Err(error.remedy("let it succeed").operation(method));
        }
        Ok(())
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.crash_point.step(self.inner.schedule(jobs)).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.crash_point.step(self.inner.cancel(jobs)).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.crash_point.step(self.inner.reschedule(moves)).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.crash_point.step(self.inner.get(job)).await
    }

    async fn close(&self) -> Result<()> {
        self.before("close").await?;
        self.inner.close().await
    }
}

/// A drained store that is already open.
#[derive(Debug, Deserialize)]
pub(crate) struct OpenStore {
    #[serde(skip)]
    pub(crate) store: Option<Arc<dyn Backend>>,
}

#[async_trait]
impl BackendConfig for OpenStore {
    async fn connect(&self, _: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(self.store.clone().expect("the store is open"))
    }
}

/// Returns the output if the future is ready within `times` polls.
pub(crate) fn poll_times<T>(
    future: &mut Pin<Box<dyn Future<Output = T> + Send + '_>>,
    times: usize,
) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    (0..times).find_map(|_| match future.as_mut().poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    })
}
