//! What the author of a backend hands to the suite.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use dq_core::{Backend, Result, VirtualClock};

/// A backend that is put to the test.
#[async_trait]
pub trait Subject: Debug + Send + Sync + 'static {
    /// Prepares a store for one trial.
    ///
    /// Trials use queue names of their own, so the store may hold other things and may be in use
    /// by other trials at the same time.
    async fn prepare(&self) -> Result<Box<dyn Store>>;
}

/// A store, apart from the handles by which it is used.
#[async_trait]
pub trait Store: Debug + Send + Sync + 'static {
    /// Opens a handle, as a process does that has just started.
    ///
    /// A backend that is neither durable nor shared is asked once. One that is durable is asked
    /// again after the first handle was dropped without [`Backend::close`], as in a crash. One
    /// that is shared is asked again while the first handle is in use.
    async fn open(&self) -> Result<Arc<dyn Backend>>;

    /// The clock by which the handles go.
    fn time(&self) -> Time;
}

/// The clock by which a store goes.
#[derive(Debug, Clone)]
pub enum Time {
    /// It is turned by the trial: exact to the millisecond, and nobody waits.
    Virtual(Arc<VirtualClock>),
    /// It goes by itself: trials wait until the store's clock has passed.
    Real,
}
