//! A store whose methods a test can make fail.

use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{Backend, Error, ErrorKind, Layer, Result, async_trait};

/// A store in which a method fails with `Unavailable` until it recovers.
#[derive(Debug)]
pub(crate) struct FailingStore {
    inner: Arc<dyn Backend>,
    failing: Mutex<Option<&'static str>>,
}

impl FailingStore {
    pub(crate) fn over(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { inner, failing: Mutex::default() })
    }

    pub(crate) fn fail(&self, method: &'static str) {
        *lock(&self.failing) = Some(method);
    }

    pub(crate) fn recover(&self) {
        *lock(&self.failing) = None;
    }
}

#[async_trait]
impl Layer for FailingStore {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn before(&self, method: &'static str) -> Result<()> {
        if *lock(&self.failing) == Some(method) {
            let error = Error::new(ErrorKind::Unavailable, "the test makes this method fail");
            return Err(error.remedy("let it succeed").operation(method));
        }
        Ok(())
    }

    // A layer's `before` does not run for `close`.
    async fn close(&self) -> Result<()> {
        self.before("close").await?;
        self.inner.close().await
    }
}
