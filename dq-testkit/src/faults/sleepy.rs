//! An outage in two calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dq_core::{Backend, Error, ErrorKind, Result, async_trait};

use super::layer::{Layer, Layered};

/// A backend that cannot be reached while it sleeps.
///
/// ```
/// # async fn example(store: std::sync::Arc<dyn dq_core::Backend>) {
/// use dq_core::Backend;
/// use dq_testkit::faults::Sleepy;
///
/// let backend = Sleepy::over(store);
/// backend.sleep();
/// assert!(backend.now().await.unwrap_err().is_retryable());
/// backend.wake();
/// # }
/// ```
#[derive(Debug)]
pub struct Sleepy {
    inner: Arc<dyn Backend>,
    asleep: AtomicBool,
}

impl Sleepy {
    /// Wraps a backend; it is awake.
    #[must_use]
    pub fn over(inner: Arc<dyn Backend>) -> Arc<Layered<Self>> {
        Arc::new(Layered(Self { inner, asleep: AtomicBool::new(false) }))
    }

    /// From now on every call answers `Unavailable` and does nothing.
    pub fn sleep(&self) {
        self.asleep.store(true, Ordering::Release);
    }

    /// From now on calls are answered again.
    pub fn wake(&self) {
        self.asleep.store(false, Ordering::Release);
    }
}

#[async_trait]
impl Layer for Sleepy {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn before(&self, call: &'static str) -> Result<()> {
        if self.asleep.load(Ordering::Acquire) {
            let error = Error::new(ErrorKind::Unavailable, "the store is asleep");
            return Err(error.remedy("wake it").operation(call));
        }
        Ok(())
    }
}
