//! Events of a runner, for metrics and tests.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use crate::backend::{Lease, Settled, Verdict};
use crate::error::Error;
use crate::handler::{JobContext, JobResult};

/// An event of a runner. New kinds may be added in any release.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Jobs were claimed; their handlers have not started.
    Claimed {
        /// Number of jobs.
        jobs: usize,
    },
    /// A handler is about to start.
    Started(&'a JobContext),
    /// A handler has ended; its job is not settled yet.
    Finished {
        /// The run.
        job: &'a JobContext,
        /// The result of the run.
        result: &'a JobResult,
        /// The verdict, which the runner will report to the store.
        verdict: &'a Verdict,
    },
    /// The store has answered the settlement of a run.
    Settled {
        /// The lease of the run.
        lease: &'a Lease,
        /// The verdict that the runner reported.
        verdict: &'a Verdict,
        /// Whether the store accepted it.
        settled: Settled,
    },
    /// Leases were renewed.
    Renewed {
        /// Number of leases.
        leases: usize,
    },
    /// A lease was lost while the handler ran; the cancellation signal of the run has fired.
    LeaseLost(&'a Lease),
    /// A call to the store failed.
    StoreFailed(&'a Error),
    /// Shutdown has begun; no more jobs are claimed.
    Stopping {
        /// Number of handlers that still run.
        running: usize,
    },
    /// The runner has stopped.
    Stopped,
}

/// Receives the events of a runner synchronously, for metrics and tests.
///
/// Must not block. A panic is caught and logged.
pub trait Observer: Send + Sync + 'static {
    /// Handles one event.
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
    pub(super) fn notify(&self, event: &Event<'_>) {
        for observer in &self.0 {
            // A panic in an observer must not end the loop that notifies it.
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
