//! A store that is unavailable while the test says so.

use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{Backend, Error, ErrorKind, Layer, Result, async_trait};

/// A store whose calls fail with `Unavailable`, and have no effect, until it recovers.
#[derive(Debug)]
pub(crate) struct FailingStore {
    inner: Arc<dyn Backend>,
    fails: Mutex<fn(&str) -> bool>,
}

impl FailingStore {
    pub(crate) fn over(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { inner, fails: Mutex::new(|_method| false) })
    }

    /// Makes calls fail whose method meets the condition.
    pub(crate) fn fail(&self, condition: fn(&str) -> bool) {
        *lock(&self.fails) = condition;
    }

    pub(crate) fn recover(&self) {
        self.fail(|_method| false);
    }
}

#[async_trait]
impl Layer for FailingStore {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn before(&self, method: &'static str) -> Result<()> {
        let fails = *lock(&self.fails);
        if fails(method) {
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
