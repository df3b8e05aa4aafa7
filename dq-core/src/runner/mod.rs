//! The machine that finds due jobs and runs their handlers; the same for every backend.
//!
//! One file, one loop: `pump` claims, `execute` runs, `settle` tells the store how it went, `renew`
//! keeps leases, `maintain` looks after what nobody else does. `judge` alone decides what a result
//! means, `slots` alone how much runs at once; `source` is what the loops of one store share.

mod builder;
mod due;
mod execute;
mod judge;
mod leases;
mod maintain;
mod observe;
mod pump;
mod renew;
mod settle;
mod slots;
mod source;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use builder::RunnerBuilder;
pub use observe::{Event, Observer};

use self::observe::Observers;
use self::slots::Slots;
use self::source::Source;
use crate::backend::Checked;
use crate::client::RunnerNameGuard;
use crate::clock::Clock;
use crate::config::{Environment, QueuePolicy, RunnerSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Handler, Middleware, StateMap};
use crate::model::{Limits, QueueName, Timestamp};

/// How long the store is given to take the last settlements once handlers have ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Runs the handlers of due jobs. Made by [`Dq::runner`](crate::Dq::runner).
#[derive(Debug)]
pub struct Runner {
    machine: Arc<Machine>,
    stores: Vec<Arc<Checked>>,
    _name: RunnerNameGuard,
}

/// What all loops of a runner share.
#[derive(Debug)]
pub(crate) struct Machine {
    name: Arc<str>,
    /// The queues that are served; their numbers are the same in `slots`.
    served: Vec<Served>,
    numbers: HashMap<QueueName, usize>,
    slots: Slots,
    middleware: Vec<Arc<dyn Middleware>>,
    state: Arc<StateMap>,
    environment: Environment,
    observers: Observers,
    settings: RunnerSettings,
    limits: Limits,
    /// Fires when no more is to be claimed.
    stop: CancellationToken,
    /// Fires when running handlers are to be dropped and handed back.
    abort: CancellationToken,
}

/// A queue with its handler and how it is served.
#[derive(Debug)]
struct Served {
    queue: QueueName,
    handler: Arc<Handler>,
    policy: QueuePolicy,
}

/// What [`Runner::run_due`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RanDue {
    /// How many jobs ran.
    pub jobs: usize,
    /// When the next one is due, by the store's clock.
    pub next_due: Option<Timestamp>,
}

impl Runner {
    /// Runs until `shutdown` ends, then stops in good order: no more claims; running handlers get
    /// the grace period; what was claimed and not started, and then what did not finish, is handed
    /// back to the store and is due at once elsewhere.
    ///
    /// **Cancellation safety:** dropping the future is like a crash: handlers are dropped, and
    /// their jobs run again when the leases have lapsed.
    ///
    /// # Errors
    /// `Closed` if the store was closed under the runner; `Internal` if a loop of the runner ended
    /// by itself. A store that is away for a while is no error: the runner waits for it.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let machine = &self.machine;
        // If this future is dropped, so are the handlers.
        let _abort_on_drop = machine.abort.clone().drop_guard();
        let handlers = TaskTracker::new();
        let mut pumps = JoinSet::new();
        let mut settlers = JoinSet::new();
        let mut helpers = JoinSet::new();
        for (number, store) in self.stores.iter().enumerate() {
            let (source, settlements) =
                Source::new(Arc::clone(machine), Arc::clone(store), number, handlers.clone());
            let source = Arc::new(source);
            settlers.spawn(settle::run(Arc::clone(&source), settlements));
            helpers.spawn(renew::run(Arc::clone(&source)));
            helpers.spawn(maintain::run(Arc::clone(&source)));
            pumps.spawn(pump::run(source));
        }
        tokio::pin!(shutdown);
        let ended = tokio::select! {
            () = &mut shutdown => Ok(()),
            // These end by themselves only if something is wrong.
            Some(pump) = pumps.join_next() => pump.unwrap_or_else(|_| Err(broken("claims"))),
            Some(_) = settlers.join_next() => Err(broken("settles")),
            Some(_) = helpers.join_next() => Err(broken("renews leases")),
        };
        machine.stop.cancel();
        machine.observers.tell(&Event::Stopping { running: handlers.len() });
        tracing::info!(runner = %machine.name, running = handlers.len(), "stopping");
        let clock = &machine.environment.clock;
        let orderly = async {
            while pumps.join_next().await.is_some() {}
            handlers.close();
            handlers.wait().await;
        };
        tokio::select! {
            () = orderly => {}
            () = clock.sleep(machine.settings.grace) => {
                tracing::warn!(runner = %machine.name, running = handlers.len(),
                    "the grace period is over; unfinished jobs are handed back");
                machine.abort.cancel();
                pumps.abort_all();
            }
        }
        let last_words = async {
            while pumps.join_next().await.is_some() {}
            handlers.close();
            handlers.wait().await;
            // The helpers hold the way to the settlers open; leases need no renewal any more.
            helpers.shutdown().await;
            while settlers.join_next().await.is_some() {}
        };
        tokio::select! {
            () = last_words => {}
            () = clock.sleep(LAST_WORDS) => tracing::error!(runner = %machine.name,
                "the store did not take the last settlements; their jobs run again when the leases lapse"),
        }
        machine.observers.tell(&Event::Stopped);
        tracing::info!(runner = %machine.name, "stopped");
        ended
    }

    /// Runs everything that is due now, one job after the other in due order, and what that makes
    /// due, and returns when nothing is. For tests on a virtual clock and for programs that are
    /// started now and then; it asks the store about each queue before each job, so
    /// [`run_until`](Self::run_until) is the one for many jobs.
    ///
    /// **Cancellation safety:** if the future is dropped, the job that was running runs again when
    /// its lease has lapsed.
    ///
    /// # Errors
    /// What the store says.
    pub async fn run_due(&self) -> Result<RanDue> {
        let mut ran = RanDue { jobs: 0, next_due: None };
        for (number, store) in self.stores.iter().enumerate() {
            let of_store = due::run(&self.machine, store, number).await?;
            ran.jobs += of_store.jobs;
            ran.next_due = ran.next_due.into_iter().chain(of_store.next_due).min();
        }
        Ok(ran)
    }

    /// The label of this runner.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.machine.name
    }
}

impl Machine {
    fn now(&self) -> Timestamp {
        self.environment.clock.now()
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        &self.environment.clock
    }

    fn served(&self, queue: &QueueName) -> Option<&Served> {
        self.numbers.get(queue).map(|number| &self.served[*number])
    }
}

fn broken(what: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("the loop that {what} has panicked"))
        .remedy("please report the panic; a runner that is started anew goes on")
        .operation("run")
}
