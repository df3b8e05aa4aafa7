//! Outages: a store that is unavailable while the test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dq_core::{Backend, Error, ErrorKind, Layer, Result, async_trait};

/// A backend that is unavailable during an outage.
///
/// ```
/// # async fn example(store: std::sync::Arc<dyn dq_core::Backend>) {
/// use dq_core::Backend;
/// use dq_testkit::faults::Outage;
///
/// let backend = Outage::over(store);
/// backend.begin();
/// assert!(backend.now().await.unwrap_err().is_retryable());
/// backend.end();
/// # }
/// ```
#[derive(Debug)]
pub struct Outage {
    inner: Arc<dyn Backend>,
    ongoing: AtomicBool,
}

impl Outage {
    /// Wraps a backend, at first without an outage.
    #[must_use]
    pub fn over(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { inner, ongoing: AtomicBool::new(false) })
    }

    /// Begins an outage: calls fail with `Unavailable` and have no effect.
    ///
    /// `check`, `close` and subscriptions still work.
    pub fn begin(&self) {
        self.ongoing.store(true, Ordering::Release);
    }

    /// Ends the outage.
    pub fn end(&self) {
        self.ongoing.store(false, Ordering::Release);
    }
}

#[async_trait]
impl Layer for Outage {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn before(&self, call: &'static str) -> Result<()> {
        if self.ongoing.load(Ordering::Acquire) {
            let error = Error::new(ErrorKind::Unavailable, "the test has begun an outage");
            return Err(error.remedy("end the outage").operation(call));
        }
        Ok(())
    }
}
