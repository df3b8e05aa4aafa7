//! The runner: starts the loops of all stores and shuts them down.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use super::events::Event;
use super::run_due::{self, RunDueReport};
use super::shared::RunnerShared;
use super::store::StoreContext;
use super::{claim, maintain, renew, settle};
use crate::backend::Checked;
use crate::client::RunnerNameGuard;
use crate::error::{Error, ErrorKind, Result};

/// Maximum time, after the handlers have ended, for the store to accept the last settlements.
const FINAL_SETTLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the handlers of due jobs; built by [`Dq::runner`](crate::Dq::runner).
#[derive(Debug)]
pub struct Runner {
    shared: Arc<RunnerShared>,
    stores: Vec<Arc<Checked>>,
    _name: RunnerNameGuard,
}

impl Runner {
    pub(super) fn new(
        shared: RunnerShared,
        stores: Vec<Arc<Checked>>,
        name: RunnerNameGuard,
    ) -> Self {
        Self { shared: Arc::new(shared), stores, _name: name }
    }

    /// Runs until `shutdown` completes, then shuts down: no more jobs are claimed, and running
    /// handlers get the grace period to finish. Jobs that have not started or not finished by then
    /// are released to the store and are due at once for other runners. The thread of a blocking
    /// handler cannot be stopped: it only gets the cancellation signal, and may still run while
    /// another runner starts the job again.
    ///
    /// The output of `shutdown` is dropped, so that `tokio::signal::ctrl_c()` can be passed as it
    /// is.
    ///
    /// **Cancellation safety:** dropping the future is like a crash: handlers are dropped, and
    /// their jobs run again when the leases have expired.
    ///
    /// # Errors
    /// `Closed` if the store was closed while the runner ran; `Internal` if a loop of the runner
    /// panicked. If the store is unavailable, the runner waits for it.
    pub async fn run_until<T>(self, shutdown: impl Future<Output = T>) -> Result<()> {
        let runner = &self.shared;
        // If this future is dropped, so are the handlers.
        let _abort_on_drop = runner.abort.clone().drop_guard();
        let handlers = TaskTracker::new();
        let mut claim_loops = JoinSet::new();
        let mut settle_loops = JoinSet::new();
        let mut other_loops = JoinSet::new();
        for (index, store) in self.stores.iter().enumerate() {
            let (context, finished) =
                StoreContext::new(Arc::clone(runner), Arc::clone(store), index, handlers.clone());
            let context = Arc::new(context);
            settle_loops.spawn(settle::run(Arc::clone(&context), finished));
            other_loops.spawn(renew::run(Arc::clone(&context)));
            other_loops.spawn(maintain::run(Arc::clone(&context)));
            claim_loops.spawn(claim::run(context));
        }
        tokio::pin!(shutdown);
        let result = tokio::select! {
            _ = &mut shutdown => Ok(()),
            // A loop ends before shutdown only after an error or a panic.
            Some(ended) = claim_loops.join_next() => {
                ended.unwrap_or_else(|_| Err(loop_panicked("claims")))
            }
            Some(_) = settle_loops.join_next() => Err(loop_panicked("settles")),
            Some(_) = other_loops.join_next() => Err(loop_panicked("renews leases")),
        };
        runner.stop.cancel();
        runner.observers.notify(&Event::Stopping { running: handlers.len() });
        tracing::info!(runner = %runner.name, running = handlers.len(), "stopping");
        let clock = runner.clock();
        let handlers_end = async {
            while claim_loops.join_next().await.is_some() {}
            handlers.close();
            handlers.wait().await;
        };
        tokio::select! {
            () = handlers_end => {}
            () = clock.sleep(runner.settings.grace) => {
                tracing::warn!(runner = %runner.name, running = handlers.len(),
                    "the grace period is over; unfinished jobs are released");
                runner.abort.cancel();
                claim_loops.abort_all();
            }
        }
        let final_settlements = async {
            while claim_loops.join_next().await.is_some() {}
            handlers.close();
            handlers.wait().await;
            // These loops hold senders to the settle loops, which end when all senders are dropped.
            other_loops.shutdown().await;
            while settle_loops.join_next().await.is_some() {}
        };
        tokio::select! {
            () = final_settlements => {}
            () = clock.sleep(FINAL_SETTLE_TIMEOUT) => tracing::error!(runner = %runner.name,
                "the store did not accept the last settlements; their jobs run again when the leases \
                 expire"),
        }
        runner.observers.notify(&Event::Stopped);
        tracing::info!(runner = %runner.name, "stopped");
        result
    }

    /// Runs all due jobs one after the other: store by store, in due order within a store,
    /// including jobs that become due in that store meanwhile.
    ///
    /// For tests on a virtual clock and for programs that are started periodically. It calls the
    /// store for each queue before each job; use [`run_until`](Self::run_until) for many jobs.
    ///
    /// **Cancellation safety:** if the future is dropped, the job that was running runs again when
    /// its lease has expired.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached, `Closed` if it was closed.
    pub async fn run_due(&self) -> Result<RunDueReport> {
        let mut report = RunDueReport { jobs: 0, next_due: None };
        for (index, store) in self.stores.iter().enumerate() {
            let of_store = run_due::run(&self.shared, store, index).await?;
            report.jobs += of_store.jobs;
            report.next_due = report.next_due.into_iter().chain(of_store.next_due).min();
        }
        Ok(report)
    }

    /// The name of this runner.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }
}

fn loop_panicked(task: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("the loop that {task} has panicked"))
        .remedy("please report the panic; a new runner can continue")
        .operation("run")
}
