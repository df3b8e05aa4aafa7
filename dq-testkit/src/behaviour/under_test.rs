//! The traits that the author of a backend implements for the suite, unless a URL suffices.

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
    /// Each trial has queue names of its own, so several trials may use one store at once, and the
    /// store may hold other data.
    async fn prepare(&self) -> Result<Box<dyn StoreUnderTest>>;
}

/// A store that a trial opens, possibly several times.
#[async_trait]
pub trait StoreUnderTest: Debug + Send + Sync + 'static {
    /// Opens the store, as a new process does. The environment has the store's clock, and history
    /// limits for the queues of the trial.
    ///
    /// Called once, unless the backend is durable or shared. A durable store is opened again after
    /// the first handle was dropped, usually without [`Backend::close`], as in a crash; a shared one
    /// is opened again while the first handle is in use.
    async fn open(&self, environment: &Environment) -> Result<Arc<dyn Backend>>;

    /// The clock that the store uses.
    fn clock(&self) -> StoreClock;
}

/// The clock of a store.
#[derive(Debug, Clone)]
pub enum StoreClock {
    /// A clock that the trial sets: times are tested to the millisecond, without waiting.
    Virtual(Arc<VirtualClock>),
    /// The clock of the machine or the server; the trial waits in real time.
    Real,
}

impl StoreClock {
    /// The clock of a process that uses the store.
    pub(super) fn of_process(&self) -> Arc<dyn Clock> {
        match self {
            Self::Virtual(clock) => Arc::clone(clock) as Arc<dyn Clock>,
            Self::Real => Arc::new(SystemClock),
        }
    }
}
