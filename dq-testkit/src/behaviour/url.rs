//! Backends under test that are opened by URL.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use dq_core::config::{Environment, backend_from_url};
use dq_core::{Backend, Result, VirtualClock};

use super::under_test::{BackendUnderTest, StoreClock, StoreUnderTest};

/// The URL of one trial's store.
pub struct StoreUrl {
    /// The URL, as an application passes it.
    pub url: String,
    /// A value dropped when the trial ends, such as a temporary directory or a container.
    pub guard: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for StoreUrl {
    /// Hides the URL, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreUrl").finish_non_exhaustive()
    }
}

impl From<&str> for StoreUrl {
    fn from(url: &str) -> Self {
        Self { url: url.to_owned(), guard: Box::new(()) }
    }
}

/// A backend under test that is opened by URL.
#[derive(Clone)]
pub struct UrlBackend {
    url: Arc<dyn Fn() -> StoreUrl + Send + Sync>,
    virtual_clock: bool,
}

impl UrlBackend {
    /// Tests a backend that uses the machine's or the server's clock.
    ///
    /// `url` returns each trial's store URL.
    #[must_use]
    pub fn with_real_clock(url: impl Fn() -> StoreUrl + Send + Sync + 'static) -> Self {
        Self { url: Arc::new(url), virtual_clock: false }
    }

    /// Tests a backend that uses the process's clock; each trial has a virtual one.
    ///
    /// `url` returns each trial's store URL.
    #[must_use]
    pub fn with_virtual_clock(url: impl Fn() -> StoreUrl + Send + Sync + 'static) -> Self {
        Self { url: Arc::new(url), virtual_clock: true }
    }
}

impl fmt::Debug for UrlBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UrlBackend")
            .field("virtual_clock", &self.virtual_clock)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl BackendUnderTest for UrlBackend {
    async fn prepare(&self) -> Result<Box<dyn StoreUnderTest>> {
        let clock = if self.virtual_clock {
            StoreClock::Virtual(Arc::new(VirtualClock::default()))
        } else {
            StoreClock::Real
        };
        Ok(Box::new(UrlStore { url: (self.url)(), clock }))
    }
}

#[derive(Debug)]
struct UrlStore {
    url: StoreUrl,
    clock: StoreClock,
}

#[async_trait]
impl StoreUnderTest for UrlStore {
    async fn open(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        backend_from_url(&self.url.url)?.connect(environment).await
    }

    fn clock(&self) -> StoreClock {
        self.clock.clone()
    }
}
