//! The runner: starts the loops of all stores and shuts them down.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use super::claim::SlotClaimer;
use super::events::Event;
use super::run_due::{self, RunDueReport};
use super::shared::RunnerShared;
use super::store::StoreContext;
use super::{announce, claim, maintain, objective, renew, settle};
use crate::backend::Checked;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::panics;
use crate::ingress::Ingress;
use crate::schedules::Declarations;

/// Time limit for the last settlements, after the last handler or the grace period ends. Blocking
/// handlers may still return within it.
const FINAL_SETTLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the handlers of due jobs; built by [`Dq::runner`](crate::Dq::runner).
#[derive(Debug)]
pub struct Runner {
    pub(super) shared: Arc<RunnerShared>,
    pub(super) stores: Vec<Arc<Checked>>,
    pub(super) declarations: Arc<Declarations>,
    pub(super) ingress: Ingress,
}

impl Runner {
    /// Runs until `shutdown` completes, then shuts down.
    ///
    /// The runner then claims no more jobs, takes no more [`Ingress`] messages, and gives running
    /// handlers the grace period to finish. It releases jobs that have not finished by then; other
    /// runners can claim them at once.
    ///
    /// A blocking handler only gets the cancellation signal then, because its thread cannot be
    /// stopped. If it returns within 5 s, and middleware a second later, the job is settled, or
    /// released if the handler failed.
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
        let Self { shared: runner, stores, declarations, ingress } = self;
        // Dropping this future also drops the handlers.
        let _abort_on_drop = runner.abort.clone().drop_guard();
        runner.observers.notify(&Event::Starting { slots: runner.settings.concurrency });
        let mut tasks = Tasks::start(&runner, &stores);
        tasks.until_stop.spawn(named("declaration", async move { declarations.run().await }));
        if !ingress.is_empty() {
            let stop = runner.stop.clone().cancelled_owned();
            tasks.ingress.spawn(named("ingress", ingress.run_until(stop)));
        }
        tokio::pin!(shutdown);
        let result = tokio::select! {
            _ = &mut shutdown => Ok(()),
            error = tasks.failed() => Err(error),
        };
        let ended = shut_down(&runner, &mut tasks).await;
        let result = result.and(tasks.claim_error.take().map_or(Ok(()), Err));
        match ended {
            Ended::HandlersRun => {
                let runner = Arc::clone(&runner);
                tokio::spawn(async move {
                    tasks.end().await;
                    announce::withdraw(&runner, &stores).await;
                });
            }
            Ended::All => {
                tasks.until_end.shutdown().await;
                announce::withdraw(&runner, &stores).await;
            }
        }
        runner.observers.notify(&Event::Stopped);
        tracing::info!(runner = %runner.name, "stopped");
        result
    }

    /// Runs all due jobs one after the other.
    ///
    /// It goes store by store, by priority and in due order, including jobs that become due
    /// meanwhile. Declared schedules are stored first; if one cannot be stored, the jobs still run
    /// and then the error is returned. No [`Ingress`] messages are taken.
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
        for (claim_loop, store) in self.stores.iter().enumerate() {
            let store_report = run_due::run(&self.shared, store, claim_loop).await?;
            report.jobs += store_report.jobs;
            report.next_due = report.next_due.into_iter().chain(store_report.next_due).min();
        }
        kept.map(|()| report)
    }

    /// Returns this runner's name, with its random digits.
    pub fn name(&self) -> &str {
        &self.shared.name
    }
}

enum Ended {
    All,
    HandlersRun,
}

async fn shut_down(runner: &RunnerShared, tasks: &mut Tasks) -> Ended {
    runner.stop.cancel();
    tasks.until_stop.abort_all();
    let running = tasks.handlers.len();
    runner.observers.notify(&Event::Stopping { running });
    tracing::info!(runner = %runner.name, running, "stopping");
    let is_in_time = tokio::select! {
        () = tasks.handlers_end() => true,
        () = runner.clock().sleep(runner.settings.grace) => false,
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
        () = runner.clock().sleep(FINAL_SETTLE_TIMEOUT) => false,
    };
    let running = tasks.handlers.len();
    if running > 0 {
        tracing::error!(runner = %runner.name, running,
            "blocking handlers still run; their leases are renewed until they return or this \
             program ends");
        return Ended::HandlersRun;
    }
    if !is_settled {
        tracing::error!(runner = %runner.name,
            "the store did not accept the last settlements; their jobs run again when the leases \
             expire");
    }
    Ended::All
}

#[derive(Default)]
struct Tasks {
    claims: JoinSet<Result<()>>,
    /// Error of a claim loop that ended just as the runner was stopped.
    claim_error: Option<Error>,
    settles: JoinSet<Result<()>>,
    ingress: JoinSet<Result<()>>,
    /// Loops that end when the shutdown begins.
    until_stop: JoinSet<Result<Infallible>>,
    /// Loops that go on until the last handler has ended.
    until_end: JoinSet<Result<Infallible>>,
    handlers: TaskTracker,
}

impl Tasks {
    fn start(runner: &Arc<RunnerShared>, stores: &[Arc<Checked>]) -> Self {
        let mut tasks = Self::default();
        let mut contexts = Vec::new();
        for (claim_loop, store) in stores.iter().enumerate() {
            let (runner, store) = (Arc::clone(runner), Arc::clone(store));
            let (context, finished) =
                StoreContext::new(runner, store, claim_loop, tasks.handlers.clone());
            let shared = || Arc::clone(&context);
            tasks.settles.spawn(named("settle", settle::run(shared(), finished)));
            tasks.until_end.spawn(named("renew", renew::run(shared())));
            tasks.until_end.spawn(named("maintain", maintain::run(shared())));
            tasks.until_end.spawn(named("announce", announce::run(shared())));
            let claims = named("claim", claim::run(shared(), SlotClaimer::new(shared())));
            tasks.claims.spawn(async { claims.await? });
            contexts.push(context);
        }
        // Contexts hold senders to the settle loops, which end with the last sender.
        if runner.queues.iter().any(|served| served.starts.is_some()) {
            let objectives = objective::run(Arc::clone(runner), contexts);
            tasks.until_stop.spawn(named("objective", objectives));
        }
        tasks
    }

    async fn failed(&mut self) -> Error {
        tokio::select! {
            Some(Ok(Err(error))) = self.claims.join_next() => error,
            Some(Ok(Err(error))) = self.settles.join_next() => error,
            Some(Ok(Err(error))) = self.ingress.join_next() => error,
            Some(Ok(Err(error))) = self.until_stop.join_next() => error,
            Some(Ok(Err(error))) = self.until_end.join_next() => error,
            else => std::future::pending().await,
        }
    }

    /// Waits until no more jobs start and all handlers have ended.
    async fn handlers_end(&mut self) {
        while self.ingress.join_next().await.is_some() {}
        while let Some(ended) = self.claims.join_next().await {
            // A store closed together with its runner is no error.
            let error = ended.ok().and_then(Result::err);
            let error = error.filter(|error| error.kind() != ErrorKind::Closed);
            self.claim_error = self.claim_error.take().or(error);
        }
        self.handlers.close();
        self.handlers.wait().await;
    }

    async fn end(&mut self) {
        self.handlers_end().await;
        // These loops hold senders to the settle loops, which end with the last sender.
        self.until_end.shutdown().await;
        self.until_stop.shutdown().await;
        while self.settles.join_next().await.is_some() {}
    }
}

/// Runs a loop. A panic becomes an error that names the loop.
async fn named<T>(name: &str, run: impl Future<Output = T>) -> Result<T> {
    panics::catch_future(run).await.map_err(|panic| {
        let message = format!("the runner's {name} loop has panicked: {panic}");
        Error::new(ErrorKind::Internal, message)
            .remedy("please report the panic; a new runner can continue")
            .operation("run")
    })
}
