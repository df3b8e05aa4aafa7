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
use crate::schedules::Declarations;

/// Time limit for the last settlements, after the last handler or the grace period ends. Blocking
/// handlers may still return within it.
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

    /// Runs until `shutdown` completes, then shuts down.
    ///
    /// The runner then claims no more jobs, takes no more [`Ingress`] messages, and gives running
    /// handlers the grace period to finish. It releases jobs that have not finished by then; other
    /// runners can claim them at once.
    ///
    /// A blocking handler only gets the cancellation signal then, because its thread cannot be
    /// stopped. If it returns within 5 s, the job is settled, or released if the handler failed.
    /// Otherwise this method returns, and a background task renews the lease until it can settle
    /// the job. The task ends with the Tokio runtime, and the lease then expires. A dropped runtime
    /// waits for its threads, so a handler that outlives its lease may run twice at once: set a
    /// longer grace period, or end the process with [`std::process::exit`].
    ///
    /// Pass [`shutdown_signal`](crate::shutdown_signal) or any other future; its output is dropped.
    ///
    /// **Cancellation safety:** dropping the future is like a crash. Handlers are dropped, except
    /// the threads of blocking ones, and their jobs run again when the leases expire.
    ///
    /// # Errors
    /// `Closed` if the store was closed meanwhile; `Incompatible` if another version has written
    /// data that this one is too old for; `Internal` if a runner loop panicked. If the store is
    /// unavailable, the runner waits for it.
    pub async fn run_until<T>(self, shutdown: impl Future<Output = T>) -> Result<()> {
        let Self { shared: runner, stores, declarations, ingress, name } = self;
        // Dropping this future also drops the handlers.
        let _abort_on_drop = runner.abort.clone().drop_guard();
        runner.observers.notify(&Event::Starting { slots: runner.settings.concurrency });
        let mut tasks = Tasks::default();
        let contexts: Vec<_> = stores
            .iter()
            .enumerate()
            .map(|(index, store)| tasks.start(&runner, store, index))
            .collect();
        if runner.queues.iter().any(|served| served.starts.is_some()) {
            tasks.objectives.spawn(objective::run(Arc::clone(&runner), contexts));
        } else {
            // Dropped because they hold senders to the settle loops, which end with the last
            // sender.
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
                // Kept until here: a new runner with the same name would be withdrawn, too.
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

    /// Runs all due jobs one after the other.
    ///
    /// It goes store by store, in due order, including jobs that become due meanwhile. Declared
    /// schedules are stored first; if one cannot be stored, the jobs still run and then the error
    /// is returned. No [`Ingress`] messages are taken.
    ///
    /// Use it in tests on a virtual clock and in programs started periodically. It calls the store
    /// for each queue before each job; use [`run_until`](Self::run_until) for many jobs.
    ///
    /// **Cancellation safety:** if you drop the future, the job runs again when its lease expires.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached, `Closed` if it was closed, `InvalidInput` if
    /// the new form of a declared schedule has no future occurrence.
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

    /// Returns this runner's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }
}

#[derive(Default)]
struct Tasks {
    claims: JoinSet<Result<()>>,
    /// Error of a claim loop that ended just as the runner was stopped.
    claim_error: Option<Error>,
    settles: JoinSet<()>,
    renewals: JoinSet<Infallible>,
    checks: JoinSet<Infallible>,
    announcements: JoinSet<Infallible>,
    objectives: JoinSet<Infallible>,
    declarations: JoinSet<Infallible>,
    ingress: JoinSet<()>,
    handlers: TaskTracker,
}

impl Tasks {
    /// `index` is the claim loop's.
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

    /// Waits until a loop ends; before shutdown that means an error or a panic.
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

    async fn handlers_end(&mut self) {
        while self.ingress.join_next().await.is_some() {}
        while let Some(ended) = self.claims.join_next().await {
            // A store closed together with its runner is no error.
            let error = claim_error(ended).filter(|error| error.kind() != ErrorKind::Closed);
            self.claim_error = self.claim_error.take().or(error);
        }
        self.handlers.close();
        self.handlers.wait().await;
    }

    async fn end(&mut self) {
        self.handlers_end().await;
        // These loops hold senders to the settle loops, which end with the last sender.
        self.renewals.shutdown().await;
        self.checks.shutdown().await;
        self.announcements.shutdown().await;
        self.objectives.shutdown().await;
        while self.settles.join_next().await.is_some() {}
    }
}

fn claim_error(ended: Result<Result<()>, JoinError>) -> Option<Error> {
    ended.ok().and_then(Result::err)
}

fn loop_panicked(task: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("the loop that {task} has panicked"))
        .remedy("please report the panic; a new runner can continue")
        .operation("run")
}
