//! How a runner is made, and everything that is checked before the first job.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::observe::{Observer, Observers};
use super::slots::Slots;
use super::{Machine, Runner, Served};
use crate::backend::Backend;
use crate::client::Dq;
use crate::config::{QueueSettings, RunnerSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{
    DelayHandler, Handler, HandlerFn, Middleware, Registration, Registry, StateMap,
};
use crate::model::QueueName;

/// Everything about a runner that can be said. Made by [`Dq::runner`].
///
/// What is said wrongly is told by [`build`](Self::build) or [`run_until`](Self::run_until).
#[must_use = "a runner does nothing until it is run"]
pub struct RunnerBuilder {
    dq: Dq,
    name: Option<String>,
    linked: bool,
    handlers: Vec<Result<Handler>>,
    only: Option<Vec<Result<QueueName>>>,
    settings: Vec<(Result<QueueName>, QueueSettings)>,
    state: StateMap,
    middleware: Vec<Arc<dyn Middleware>>,
    observers: Observers,
    runner: RunnerSettings,
}

impl Dq {
    /// A runner for the handlers of the linked crates.
    pub fn runner(&self) -> RunnerBuilder {
        RunnerBuilder::new(self.clone())
    }
}

impl RunnerBuilder {
    fn new(dq: Dq) -> Self {
        let mut state = StateMap::default();
        state.insert(dq.clone());
        Self {
            name: None,
            linked: true,
            handlers: Vec::new(),
            only: None,
            settings: Vec::new(),
            state,
            middleware: Vec::new(),
            observers: Observers::default(),
            runner: dq.shared().runner.clone(),
            dq,
        }
    }

    /// A value that handlers get a clone of by `State<T>`; one per type, the last wins. `State<Dq>` is
    /// there without asking.
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.state.insert(value);
        self
    }

    /// Adds a handler that is an object with state of its own.
    #[track_caller]
    pub fn handler(mut self, object: impl DelayHandler) -> Self {
        self.handlers.push(Handler::from_object(object));
        self
    }

    /// Adds an annotated function by name: for crates that are linked in ways in which functions
    /// do not register themselves.
    pub fn register<H: HandlerFn>(mut self) -> Self {
        self.handlers.push(Registration::of::<H>().handler());
        self
    }

    /// Serves only what was added by hand, not what annotated functions registered.
    pub fn without_linked_handlers(mut self) -> Self {
        self.linked = false;
        self
    }

    /// Serves only these queues, of all that have handlers.
    pub fn only<N: AsRef<str>>(mut self, queues: impl IntoIterator<Item = N>) -> Self {
        self.only = Some(queues.into_iter().map(QueueName::new).collect());
        self
    }

    /// Settings of one queue; they win over configuration and attribute.
    pub fn queue(mut self, queue: impl AsRef<str>, settings: QueueSettings) -> Self {
        self.settings.push((QueueName::new(queue), settings));
        self
    }

    /// Adds a middleware; the first one added is the outermost.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Adds somebody who is told what the runner does.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.0.push(Arc::new(observer));
        self
    }

    /// The label by which operators know this runner; made from the process number unless
    /// given. Two
    /// runners of one [`Dq`] cannot have the same.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Jobs that run at once over all queues; 256 unless set.
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.runner.concurrency = jobs;
        self
    }

    /// How long running handlers may take to end when the runner is told to stop; 30 s unless set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.runner.grace = grace;
        self
    }

    /// Longest time between two looks at the store; 100 ms to 1 min, 1 s unless set.
    pub fn sweep(mut self, sweep: Duration) -> Self {
        self.runner.sweep = sweep;
        self
    }

    /// Checks everything and logs the table of handlers.
    ///
    /// # Errors
    /// - `Duplicate`: two handlers for one code (both places are named), or two runners of one
    ///   name;
    /// - `Unhandled`: a queue that is configured or asked for has no handler;
    /// - `MissingState`: a handler asks for a `State<T>` that was not given;
    /// - `Config`: a setting is out of range;
    /// - `InvalidInput`: a code is no valid queue name.
    pub fn build(self) -> Result<Runner> {
        self.build_inner().map_err(|error| error.operation("build the runner"))
    }

    /// [`build`](Self::build) and [`Runner::run_until`] in one.
    ///
    /// # Errors
    /// Those of the two.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<()> {
        self.build()?.run_until(shutdown).await
    }

    fn build_inner(self) -> Result<Runner> {
        self.runner.validate()?;
        let mut registry = if self.linked { Registry::linked()? } else { Registry::default() };
        for handler in self.handlers {
            registry.insert(handler?)?;
        }
        let mut settings = Vec::new();
        for (queue, of_queue) in self.settings {
            let queue = queue?;
            registry.expect(&queue)?;
            settings.push((queue, of_queue));
        }
        let shared = self.dq.shared();
        match self.only {
            Some(only) => registry.retain(&only.into_iter().collect::<Result<Vec<_>>>()?)?,
            None => {
                for queue in shared.queues.keys() {
                    registry.expect(queue).map_err(|error| {
                        let remedy = error.remedy_text().unwrap_or_default().to_owned();
                        error.remedy(format!(
                            "it stands in the configuration; {remedy}; if another service handles \
                             it, name the queues of this one with `.only([…])`"
                        ))
                    })?;
                }
            }
        }
        if registry.is_empty() {
            return Err(Error::new(ErrorKind::Unhandled, "the runner has no handlers").remedy(
                "annotate a function with #[delay_handler(\"CODE\")]; if its crate is another, \
                 name that in code: `use my_handlers as _;`",
            ));
        }
        registry.expect_state(&self.state)?;
        let served = registry.iter().map(|handler| {
            let queue = handler.queue.clone();
            let said = settings.iter().rev().filter(|(name, _)| *name == queue);
            let said =
                said.fold(QueueSettings::default(), |said, (_, more)| said.over(more.clone()));
            let policy = said
                .over(shared.queues.get(&queue).cloned().unwrap_or_default())
                .over(shared.defaults.clone())
                .over(handler.settings.clone())
                .policy(&queue)?;
            Ok(Served { queue, handler: Arc::clone(handler), policy })
        });
        let served: Vec<Served> = served.collect::<Result<_>>()?;
        let name = self.name.unwrap_or_else(|| {
            let random = shared.environment.entropy.bits() & 0xffff_ffff;
            format!("{}-{random:08x}", std::process::id())
        });
        let name_guard = shared.reserve_runner_name(&name)?;
        let mut stores = vec![Arc::clone(&shared.stores.main)];
        stores.extend(shared.stores.drain.iter().cloned());
        let of_queues = served.iter().map(|served| served.policy.concurrency).collect();
        let backend = shared.stores.main.name();
        let concurrency = self.runner.concurrency;
        tracing::info!(runner = %name, backend, concurrency, "a runner is ready");
        tracing::info!("handlers:{}", registry.table());
        let numbers = served.iter().enumerate().map(|(n, s)| (s.queue.clone(), n)).collect();
        let machine = Machine {
            name: name.into(),
            slots: Slots::new(self.runner.concurrency, of_queues, stores.len()),
            served,
            numbers,
            middleware: self.middleware,
            state: Arc::new(self.state),
            environment: shared.environment.clone(),
            observers: self.observers,
            settings: self.runner,
            limits: shared.limits.clone(),
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
        };
        Ok(Runner { machine: Arc::new(machine), stores, _name: name_guard })
    }
}

impl std::fmt::Debug for RunnerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunnerBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}
