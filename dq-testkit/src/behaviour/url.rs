//! Subjects that are opened by URL, as an application would.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use dq_core::config::{Environment, backend_from_url};
use dq_core::{Backend, Clock, Entropy, Result, SystemClock, VirtualClock};

use super::subject::{Store, Subject, Time};

/// Where one trial's store is.
pub struct Address {
    /// What an application would connect to.
    pub url: String,
    /// Kept until the trial ends: a temporary directory, a container.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").finish_non_exhaustive()
    }
}

impl From<&str> for Address {
    fn from(url: &str) -> Self {
        Self { url: url.to_owned(), keep: Box::new(()) }
    }
}

/// A linked backend, opened by URL.
#[derive(Clone)]
pub struct ByUrl {
    address: Arc<dyn Fn() -> Address + Send + Sync>,
    virtual_time: bool,
}

impl ByUrl {
    /// Stores at these addresses, on the machine's clock or the server's own.
    #[must_use]
    pub fn real(address: impl Fn() -> Address + Send + Sync + 'static) -> Self {
        Self { address: Arc::new(address), virtual_time: false }
    }

    /// Stores at these addresses, each on a virtual clock, for backends that go by the process's
    /// clock.
    #[must_use]
    pub fn on_virtual_time(address: impl Fn() -> Address + Send + Sync + 'static) -> Self {
        Self { address: Arc::new(address), virtual_time: true }
    }
}

impl fmt::Debug for ByUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByUrl").field("virtual_time", &self.virtual_time).finish_non_exhaustive()
    }
}

#[async_trait]
impl Subject for ByUrl {
    async fn prepare(&self) -> Result<Box<dyn Store>> {
        let time = if self.virtual_time {
            Time::Virtual(Arc::new(VirtualClock::default()))
        } else {
            Time::Real
        };
        Ok(Box::new(UrlStore { address: (self.address)(), time }))
    }
}

#[derive(Debug)]
struct UrlStore {
    address: Address,
    time: Time,
}

#[async_trait]
impl Store for UrlStore {
    async fn open(&self) -> Result<Arc<dyn Backend>> {
        let clock: Arc<dyn Clock> = match &self.time {
            Time::Virtual(clock) => Arc::clone(clock) as Arc<dyn Clock>,
            Time::Real => Arc::new(SystemClock),
        };
        let environment = Environment { clock, entropy: Arc::new(Entropy::from_os()) };
        backend_from_url(&self.address.url)?.connect(&environment).await
    }

    fn time(&self) -> Time {
        self.time.clone()
    }
}
