//! The runner: starts the loops of all stores and shuts them down.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio_util::task::TaskTracker;

use super::events::Event;
use super::run_due::{self, RunDueReport};
use super::shared::RunnerShared;
use super::store::StoreContext;
use super::{announce, claim, maintain, objective, renew, settle};
use crate::backend::Checked;
use crate::client::RunnerNameGuard;
use crate::error::{Error, ErrorKind, Result};
use crate::ingress::Ingress;
use crate::recurring::Declarations;

/// Maximum time, after the handlers have ended or the grace period is over, for the store to accept
/// the last settlements. Blocking handlers that still run may return within it.
const FINAL_SETTLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the handlers of due jobs; built by [`Dq::runner`](crate::Dq::runner).
#[derive(Debug)]
pub struct Runner {
    shared: Arc<RunnerShared>,
    stores: Vec<Arc<Checked>>,
    declarations: Arc<Declarations>,
    ingress: Ingress,
    name: RunnerNameGuard,
}

impl Runner {
    pub(super) fn new(
        shared: RunnerShared,
        stores: Vec<Arc<Checked>>,
        declarations: Declarations,
        ingress: Ingress,
        name: RunnerNameGuard,
    ) -> Self {
        let (shared, declarations) = (Arc::new(shared), Arc::new(declarations));
        Self { shared, stores, declarations, ingress, name }
    }

    pub(super) fn shared(&self) -> &RunnerShared {
        &self.shared
    }

    pub(super) fn stores(&self) -> &[Arc<Checked>] {
        &self.stores
    }

    /// Runs until `shutdown` completes, then shuts down: no more jobs are claimed and no more
    /// messages of an [`Ingress`] are taken, and running handlers get the grace period to finish.
    /// Jobs that have not started or not finished by then are released to the store and are due at
    /// once for other runners.
    ///
    /// A blocking handler gets only the cancellation signal at the end of the grace period, since its
    /// thread cannot be stopped. If it returns within 5 s, the job is settled, or released if the
    /// handler failed. Otherwise this method returns without it: a background task renews the lease,
    /// so that the job does not start elsewhere, and settles the job when the handler has returned.
    /// The task ends with the Tokio runtime; the lease then expires. A runtime that is dropped waits
    /// for its threads, so a handler that returns later than its lease may run twice at once: set a
    /// longer grace period, or end the process with [`std::process::exit`].
    ///
    /// [`shutdown_signal`](crate::shutdown_signal) completes when the process is asked to stop. The
    /// output of `shutdown` is dropped, so that any other future can be passed as it is.
    ///
    /// **Cancellation safety:** dropping the future is like a crash: handlers are dropped, except the
    /// threads of blocking ones, and their jobs run again when the leases have expired.
    ///
    /// # Errors
    /// `Closed` if the store was closed while the runner ran; `Incompatible` if this version is too
    /// old for what another one has written to the store meanwhile; `Internal` if a loop of the runner
    /// panicked. If the store is unavailable, the runner waits for it.
    pub async fn run_until<T>(self, shutdown: impl Future<Output = T>) -> Result<()> {
        let Self { shared: runner, stores, declarations, ingress, name } = self;
        // If this future is dropped, so are the handlers.
        let _abort_on_drop = runner.abort.clone().drop_guard();
        runner.observers.notify(&Event::Starting { slots: runner.settings.concurrency });
        let mut tasks = Tasks::default();
        let contexts: Vec<_> = stores
            .iter()
            .enumerate()
            .map(|(index, store)| tasks.start(&runner, store, index))
            .collect();
        if runner.starts.iter().any(Option::is_some) {
            tasks.objectives.spawn(objective::run(Arc::clone(&runner), contexts));
        } else {
            // They hold senders to the settle loops, which end when all senders are dropped.
            drop(contexts);
        }
        tasks.declarations.spawn(async move { declarations.run().await });
        if !ingress.is_empty() {
            tasks.ingress.spawn(ingress.run_until(runner.stop.clone().cancelled_owned()));
        }
        tokio::pin!(shutdown);
        let result = tokio::select! {
            _ = &mut shutdown => Ok(()),
            error = tasks.failed() => Err(error),
        };
        runner.stop.cancel();
        tasks.declarations.abort_all();
        tasks.objectives.abort_all();
        let running = tasks.handlers.len();
        runner.observers.notify(&Event::Stopping { running });
        tracing::info!(runner = %runner.name, running, "stopping");
        let clock = runner.clock();
        let is_in_time = tokio::select! {
            () = tasks.handlers_end() => true,
            () = clock.sleep(runner.settings.grace) => false,
        };
        if !is_in_time {
            tracing::warn!(runner = %runner.name, running = tasks.handlers.len(),
                "the grace period is over; unfinished jobs are released");
            runner.abort.cancel();
            tasks.claims.abort_all();
            tasks.ingress.abort_all();
        }
        let is_settled = tokio::select! {
            () = tasks.end() => true,
            () = clock.sleep(FINAL_SETTLE_TIMEOUT) => false,
        };
        let result = result.and(tasks.claim_error.take().map_or(Ok(()), Err));
        let running = tasks.handlers.len();
        if running > 0 {
            tracing::error!(runner = %runner.name, running,
                "blocking handlers still run; their leases are renewed until they return or this \
                 program ends");
            let runner = Arc::clone(&runner);
            tokio::spawn(async move {
                tasks.end().await;
                announce::withdraw(&runner, &stores).await;
                // Another runner with the name would be withdrawn, too.
                drop(name);
            });
        } else {
            if !is_settled {
                tracing::error!(runner = %runner.name,
                    "the store did not accept the last settlements; their jobs run again when the \
                     leases expire");
            }
            tasks.announcements.shutdown().await;
            announce::withdraw(&runner, &stores).await;
        }
        runner.observers.notify(&Event::Stopped);
        tracing::info!(runner = %runner.name, "stopped");
        result
    }

    /// Runs all due jobs one after the other: store by store, in due order within a store,
    /// including jobs that become due in that store meanwhile.
    ///
    /// Schedules that the program declares are stored first. If one cannot be stored, the jobs run
    /// all the same, and then the error is returned.
    ///
    /// No messages of an [`Ingress`] are taken.
    ///
    /// For tests on a virtual clock and for programs that are started periodically. It calls the
    /// store for each queue before each job; use [`run_until`](Self::run_until) for many jobs.
    ///
    /// **Cancellation safety:** if the future is dropped, the job that was running runs again when
    /// its lease has expired.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached, `Closed` if it was closed, `InvalidInput` if the
    /// new form of a declared schedule has no time in the future.
    pub async fn run_due(&self) -> Result<RunDueReport> {
        let kept = self.declarations.keep().await;
        let mut report = RunDueReport { jobs: 0, next_due: None };
        for (index, store) in self.stores.iter().enumerate() {
            let of_store = run_due::run(&self.shared, store, index).await?;
            report.jobs += of_store.jobs;
            report.next_due = report.next_due.into_iter().chain(of_store.next_due).min();
        }
        kept.map(|()| report)
    }

    /// The name of this runner.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }
}

/// The tasks of a runner.
#[derive(Default)]
struct Tasks {
    claims: JoinSet<Result<()>>,
    /// The error of a claim loop that ended at the same time as the runner was stopped.
    claim_error: Option<Error>,
    settles: JoinSet<()>,
    renewals: JoinSet<Infallible>,
    checks: JoinSet<Infallible>,
    announcements: JoinSet<Infallible>,
    objectives: JoinSet<Infallible>,
    declarations: JoinSet<Infallible>,
    ingress: JoinSet<()>,
    /// Tracks the tasks that run handlers.
    handlers: TaskTracker,
}

impl Tasks {
    /// Starts the loops of one store; `index` is that of its claim loop. Returns what they share.
    fn start(
        &mut self,
        runner: &Arc<RunnerShared>,
        store: &Arc<Checked>,
        index: usize,
    ) -> Arc<StoreContext> {
        let (context, finished) =
            StoreContext::new(Arc::clone(runner), Arc::clone(store), index, self.handlers.clone());
        let context = Arc::new(context);
        self.settles.spawn(settle::run(Arc::clone(&context), finished));
        self.renewals.spawn(renew::run(Arc::clone(&context)));
        self.checks.spawn(maintain::run(Arc::clone(&context)));
        self.announcements.spawn(announce::run(Arc::clone(&context)));
        self.claims.spawn(claim::run(Arc::clone(&context)));
        context
    }

    /// Waits until a loop ends, which before shutdown is an error or a panic.
    async fn failed(&mut self) -> Error {
        tokio::select! {
            Some(ended) = self.claims.join_next() => {
                claim_error(ended).unwrap_or_else(|| loop_panicked("claims"))
            }
            Some(_) = self.settles.join_next() => loop_panicked("settles"),
            Some(_) = self.renewals.join_next() => loop_panicked("renews leases"),
            Some(_) = self.checks.join_next() => loop_panicked("checks the store"),
            Some(_) = self.announcements.join_next() => loop_panicked("announces the runner"),
            Some(_) = self.objectives.join_next() => loop_panicked("checks the objectives"),
            Some(_) = self.declarations.join_next() => loop_panicked("declares schedules"),
            Some(_) = self.ingress.join_next() => loop_panicked("takes messages"),
            else => std::future::pending().await,
        }
    }

    /// Waits until the claim loops, all sources of messages and all handlers have ended.
    async fn handlers_end(&mut self) {
        while self.ingress.join_next().await.is_some() {}
        while let Some(ended) = self.claims.join_next().await {
            // A store that is closed together with its runner is no error.
            let error = claim_error(ended).filter(|error| error.kind() != ErrorKind::Closed);
            self.claim_error = self.claim_error.take().or(error);
        }
        self.handlers.close();
        self.handlers.wait().await;
    }

    /// Waits until all handlers have ended and their results are settled.
    async fn end(&mut self) {
        self.handlers_end().await;
        // These loops hold senders to the settle loops, which end when all senders are dropped.
        self.renewals.shutdown().await;
        self.checks.shutdown().await;
        self.announcements.shutdown().await;
        self.objectives.shutdown().await;
        while self.settles.join_next().await.is_some() {}
    }
}

/// The error of a claim loop that has ended; `None` if it was stopped, or has panicked.
fn claim_error(ended: Result<Result<()>, JoinError>) -> Option<Error> {
    ended.ok().and_then(Result::err)
}

fn loop_panicked(task: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("the loop that {task} has panicked"))
        .remedy("please report the panic; a new runner can continue")
        .operation("run")
}
