//! What a runner does, for those who count, test or break it.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use crate::backend::{Lease, Settled, Verdict};
use crate::error::Error;
use crate::handler::{JobContext, JobResult};

/// Something that a runner did. New kinds may be added in any release.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A claim brought jobs, which are not started yet.
    Claimed {
        /// How many.
        jobs: usize,
    },
    /// A handler is about to start.
    Started(&'a JobContext),
    /// A handler has ended; the store does not know yet.
    Finished {
        /// The run.
        job: &'a JobContext,
        /// What it came to.
        result: &'a JobResult,
        /// What the store will be told.
        verdict: &'a Verdict,
    },
    /// The store was told how a run ended.
    Settled {
        /// The lease that ended.
        lease: &'a Lease,
        /// What the store was told.
        verdict: &'a Verdict,
        /// What it answered.
        answer: Settled,
    },
    /// Leases were extended.
    Renewed {
        /// How many.
        leases: usize,
    },
    /// A lease was lost while the handler ran; its cancellation signal has fired.
    LeaseLost(&'a Lease),
    /// A call of the store failed and will be tried again.
    StoreFailed(&'a Error),
    /// No more is claimed.
    Stopping {
        /// Handlers that are running still.
        running: usize,
    },
    /// The runner has ended.
    Stopped,
}

/// Is told what a runner does, on the spot: for metrics, for tests that wait for a signal, and for
/// tests that kill the process at a given point. Must not block; a panic is caught and logged.
pub trait Observer: Send + Sync + 'static {
    /// Something happened.
    fn on(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn on(&self, event: &Event<'_>) {
        self(event);
    }
}

/// All observers of a runner.
#[derive(Default, Clone)]
pub(super) struct Observers(pub(super) Vec<Arc<dyn Observer>>);

impl Observers {
    pub(super) fn tell(&self, event: &Event<'_>) {
        for observer in &self.0 {
            // Metrics that panic must not end the loop that tells them.
            if std::panic::catch_unwind(AssertUnwindSafe(|| observer.on(event))).is_err() {
                tracing::error!("an observer of the runner panicked");
            }
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}
