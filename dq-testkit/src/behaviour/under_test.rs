//! Traits for backends under test. Implement them unless [`UrlBackend`](super::UrlBackend)
//! suffices.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use dq_core::config::Environment;
use dq_core::{Backend, Clock, Result, SystemClock, VirtualClock};

/// A backend that the suite tests.
#[async_trait]
pub trait BackendUnderTest: Debug + Send + Sync + 'static {
    /// Prepares a store for one trial.
    ///
    /// Each trial has its own queue names, so trials can share a store, which may also hold other
    /// data.
    async fn prepare(&self) -> Result<Box<dyn StoreUnderTest>>;
}

/// A store that a trial opens, possibly several times.
#[async_trait]
pub trait StoreUnderTest: Debug + Send + Sync + 'static {
    /// Opens the store, as a new process does.
    ///
    /// The environment has the store's clock, and history limits for the trial's queues.
    ///
    /// The suite calls this once, unless your backend is durable or shared. It reopens a durable
    /// store after dropping the first handle, usually without [`Backend::close`], as in a crash. It
    /// reopens a shared store while the first handle is in use.
    async fn open(&self, environment: &Environment) -> Result<Arc<dyn Backend>>;

    /// Returns the clock that the store uses.
    fn clock(&self) -> StoreClock;
}

/// A store's clock.
#[derive(Debug, Clone)]
pub enum StoreClock {
    /// A clock that the trial sets. Trials test times to the millisecond, without waiting.
    Virtual(Arc<VirtualClock>),
    /// The machine's or the server's clock. Trials wait in real time.
    Real,
}

impl StoreClock {
    pub(super) fn of_process(&self) -> Arc<dyn Clock> {
        match self {
            Self::Virtual(clock) => Arc::clone(clock) as Arc<dyn Clock>,
            Self::Real => Arc::new(SystemClock),
        }
    }
}
