//! Events of a runner, for metrics and tests.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Finding, Lease, Settled, Verdict};
use crate::config::LateAction;
use crate::error::Error;
use crate::handler::{JobContext, JobResult};
use crate::model::{DeadReason, Job, LatenessStatus};

/// An event of a runner. New kinds may be added in any release.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The runner begins to claim jobs.
    Starting {
        /// Maximum number of jobs that it runs concurrently.
        slots: usize,
    },
    /// Jobs were claimed; their handlers have not started. The framework's own jobs, such as those of
    /// schedules, occupy no slot and are not counted, and `run_due` has no slots; all other events are
    /// sent for both.
    Claimed {
        /// Number of jobs that occupy a slot each, until [`SlotFreed`](Self::SlotFreed).
        jobs: usize,
        /// Number of further jobs, which wait some milliseconds for a slot. Each has
        /// [taken one](Self::SlotTaken) then, or is given back to the store.
        held: usize,
    },
    /// A held job has taken a slot.
    SlotTaken,
    /// A handler is about to start.
    Started(&'a JobContext),
    /// A blocking handler runs longer than its timeout. The cancellation signal of the run has fired;
    /// the run goes on until the handler returns.
    TimeoutExceeded(&'a JobContext),
    /// The grace period of the shutdown is over and a blocking handler still runs. The cancellation
    /// signal of the run has fired; its job is not released before the handler returns.
    GraceExceeded(&'a JobContext),
    /// A handler has ended; its job is not settled yet. Not sent for a run that the shutdown or a
    /// newer lease of its job has ended.
    Finished {
        /// The run.
        job: &'a JobContext,
        /// The result of the run.
        result: &'a JobResult,
        /// The verdict, which the runner will report to the store.
        verdict: &'a Verdict,
        /// How long the handler and its middleware ran.
        duration: Duration,
    },
    /// A claimed job has freed its slot: its run has ended, or does not start.
    SlotFreed,
    /// A job is dead. The runner will report it so: its run has ended so, or it does not run because too
    /// many leases were lost, because the late policy of its queue says so, or because it could not be
    /// moved to the queue that this policy names. Or the store has said that it is quarantined: it cannot
    /// be read, because another program has written or damaged it.
    Dead {
        /// The job as it was claimed: its `attempts` do not count the run that has ended so. What cannot be
        /// read of a quarantined one has default values.
        job: &'a Job,
        /// The reason.
        reason: &'a DeadReason,
    },
    /// A job starts later after its due time than the late policy of its queue allows.
    Late {
        /// The job.
        job: &'a Job,
        /// How long after its due time it would start.
        lateness: Duration,
        /// What happens to it.
        then: &'a LateAction,
    },
    /// The lateness objective of a queue is missed. Sent once until it is met again.
    LatenessMissed(&'a LatenessStatus),
    /// The lateness objective of a queue was missed and is met again.
    LatenessRecovered(&'a LatenessStatus),
    /// The payload of a job has a newer schema version than this build reads. The job waits for a
    /// newer build.
    NewerVersion {
        /// The job.
        job: &'a Job,
        /// The version of its payload.
        version: u32,
    },
    /// The store has answered the settlement of a claimed job, which may not have run.
    Settled {
        /// The lease of the job.
        lease: &'a Lease,
        /// The verdict that the runner reported.
        verdict: &'a Verdict,
        /// Whether the store accepted it.
        settled: Settled,
        /// Whether an earlier call with this settlement may have taken effect although its answer
        /// was lost. `Stale` is then no sign of a lost lease.
        repeated: bool,
    },
    /// Leases were renewed.
    Renewed {
        /// Number of leases.
        leases: usize,
    },
    /// A lease was lost before its run was settled. The cancellation signal of the run has fired.
    LeaseLost(&'a Lease),
    /// A call to the store was answered, with a result or an error, or its time limit has passed.
    StoreCalled {
        /// The operation, such as `claim` or `settle`.
        operation: &'static str,
        /// How long the call took.
        duration: Duration,
    },
    /// A call to the store failed.
    StoreFailed(&'a Error),
    /// A check of the store has found a problem, such as quarantined entries. Sent once for each.
    Finding(&'a Finding),
    /// Shutdown has begun; no more jobs are claimed.
    Stopping {
        /// Number of handlers that still run.
        running: usize,
    },
    /// The runner has stopped. Events of blocking handlers that still run may follow.
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
