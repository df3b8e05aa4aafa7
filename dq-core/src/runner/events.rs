//! Events of a runner, for metrics and tests.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Finding, Lease, Settled, Verdict};
use crate::config::LateAction;
use crate::error::Error;
use crate::handler::{JobContext, JobResult};
use crate::model::{DeadReason, Flow, Job, LatenessStatus, QueueName};

/// An event of a runner. New kinds may be added in any release.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The runner begins to claim jobs.
    Starting {
        /// Maximum number of concurrent jobs.
        slots: usize,
    },
    /// Jobs were claimed; their handlers have not started. Framework jobs, such as schedule jobs,
    /// occupy no slot and are not counted, and `run_due` has no slots.
    Claimed {
        /// Jobs that occupy a slot each, until [`SlotFreed`](Self::SlotFreed).
        jobs: usize,
        /// Further jobs that wait some milliseconds for a slot. Each then [takes
        /// one](Self::SlotTaken) or is given back.
        held: usize,
    },
    /// A held job has taken a slot.
    SlotTaken,
    /// A handler is about to start.
    Started(&'a JobContext),
    /// A blocking handler exceeds its timeout. The run's cancellation signal has fired; the run
    /// continues until the handler returns.
    TimeoutExceeded(&'a JobContext),
    /// A blocking handler exceeds the shutdown's grace period. The run's cancellation signal has
    /// fired; the job is not released before the handler returns.
    GraceExceeded(&'a JobContext),
    /// A handler has ended; its job is not settled yet. Not sent if shutdown or a newer lease ended
    /// the run.
    Finished {
        /// The run.
        job: &'a JobContext,
        /// Its result.
        result: &'a JobResult,
        /// The verdict that the runner will report to the store.
        verdict: &'a Verdict,
        /// Run time including middleware.
        duration: Duration,
    },
    /// A claimed job has freed its slot: the run has ended, or does not start.
    SlotFreed,
    /// A job is dead: its run failed for good, it lost too many leases, the queue's late policy
    /// ended or could not move it, or the store quarantined it as unreadable.
    Dead {
        /// The job as claimed: `attempts` excludes the run that just failed. Unreadable fields of a
        /// quarantined job have default values.
        job: &'a Job,
        /// The reason.
        reason: &'a DeadReason,
    },
    /// A job starts later than its queue's late policy allows.
    Late {
        /// The job.
        job: &'a Job,
        /// Time from its due time to this start.
        lateness: Duration,
        /// What happens to it.
        then: &'a LateAction,
    },
    /// A queue misses its lateness objective. Sent once until the objective is met again.
    LatenessMissed(&'a LatenessStatus),
    /// A queue meets its lateness objective again.
    LatenessRecovered(&'a LatenessStatus),
    /// Another process has declared other limits for a queue later, and they count for all. Sent
    /// once for each change, up to ten minutes later.
    LimitsReplaced {
        /// The queue.
        queue: &'a QueueName,
        /// The limits that this process has declared.
        own: &'a Flow,
        /// The latest declaration.
        latest: &'a Flow,
    },
    /// A job's payload needs a newer build; the job waits for one.
    NewerVersion {
        /// The job.
        job: &'a Job,
        /// The payload's schema version.
        version: u32,
    },
    /// The store has answered the settlement of a claimed job, which may not have run.
    Settled {
        /// The lease of the job.
        lease: &'a Lease,
        /// The reported verdict.
        verdict: &'a Verdict,
        /// Whether the store accepted it.
        settled: Settled,
        /// An earlier call may have taken effect although its answer was lost, or the handler may
        /// have ended the job itself. `LostLease` may then mean that.
        repeated: bool,
    },
    /// Leases were renewed.
    Renewed {
        /// How many.
        leases: usize,
    },
    /// A lease was lost before its run was settled. The run's cancellation signal has fired.
    LeaseLost(&'a Lease),
    /// A store call has ended or exceeded its time limit.
    StoreCalled {
        /// The operation, such as `claim` or `settle`.
        operation: &'static str,
        /// How long the call took.
        duration: Duration,
    },
    /// A call to the store failed.
    StoreFailed(&'a Error),
    /// A store check has found a problem, such as quarantined entries. Sent once per problem.
    Finding(&'a Finding),
    /// Shutdown has begun; the runner claims no more jobs.
    Stopping {
        /// Handlers that still run.
        running: usize,
    },
    /// The runner has stopped. Blocking handlers that still run may send more events.
    Stopped,
}

/// Receives a runner's events synchronously, for metrics and tests.
///
/// Do not block in it. Panics are caught and logged.
pub trait Observer: Send + Sync + 'static {
    /// Handles one event.
    fn on(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn on(&self, event: &Event<'_>) {
        self(event);
    }
}

#[derive(Default, Clone)]
pub(super) struct Observers(pub(super) Vec<Arc<dyn Observer>>);

impl Observers {
    pub(super) fn notify(&self, event: &Event<'_>) {
        for observer in &self.0 {
            // An observer's panic must not end the loop that notifies it.
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
