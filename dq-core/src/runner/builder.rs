//! Builds a runner; handlers, state and settings are validated before the first job.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::events::{Observer, Observers};
use super::run::Runner;
use super::shared::{RunnerShared, ServedQueue};
use super::slots::Slots;
use crate::backend::Backend;
use crate::client::Dq;
use crate::config::{QueueSettings, RunnerSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{
    DelayHandler, Handler, HandlerFn, Middleware, Registration, Registry, StateMap,
};
use crate::model::QueueName;

/// Builds a [`Runner`]; made by [`Dq::runner`].
///
/// Invalid arguments are errors of [`build`](Self::build) and [`run_until`](Self::run_until).
#[must_use = "a runner does nothing until it is run"]
pub struct RunnerBuilder {
    dq: Dq,
    name: Option<String>,
    /// Whether to use the handlers of all linked crates.
    use_linked: bool,
    /// Handlers that were added explicitly.
    handlers: Vec<Result<Handler>>,
    only: Option<Vec<Result<QueueName>>>,
    settings: Vec<(Result<QueueName>, QueueSettings)>,
    state: StateMap,
    middleware: Vec<Arc<dyn Middleware>>,
    observers: Observers,
    runner: RunnerSettings,
}

impl Dq {
    /// A builder of a runner, with the `#[delay_handler]` functions of all linked crates.
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
            use_linked: true,
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

    /// Adds state: handlers get a clone of the value as `State<T>`. A later value of the same type
    /// replaces it. `State<Dq>` is always present.
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.state.insert(value);
        self
    }

    /// Adds a handler object.
    #[track_caller]
    pub fn handler(mut self, object: impl DelayHandler) -> Self {
        self.handlers.push(Handler::from_object(object));
        self
    }

    /// Adds a `#[delay_handler]` function explicitly, for programs in which functions do not
    /// register themselves, such as after
    /// [`without_linked_handlers`](Self::without_linked_handlers).
    pub fn register<H: HandlerFn>(mut self) -> Self {
        self.handlers.push(Registration::of::<H>().handler());
        self
    }

    /// Uses only handlers that are added explicitly, not those of the linked crates.
    pub fn without_linked_handlers(mut self) -> Self {
        self.use_linked = false;
        self
    }

    /// Serves only these of the queues that have handlers.
    pub fn only<N: AsRef<str>>(mut self, queues: impl IntoIterator<Item = N>) -> Self {
        self.only = Some(queues.into_iter().map(QueueName::new).collect());
        self
    }

    /// Sets the settings of one queue; they override the configuration and the attribute.
    pub fn queue(mut self, queue: impl AsRef<str>, settings: QueueSettings) -> Self {
        self.settings.push((QueueName::new(queue), settings));
        self
    }

    /// Adds a middleware. The first one added is the outermost.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Adds an observer.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.0.push(Arc::new(observer));
        self
    }

    /// Sets the name of the runner in logs and in the store; generated from the process id by
    /// default. Two runners of one [`Dq`] must have different names.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets how many jobs run concurrently over all queues; 256 by default.
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.runner.concurrency = jobs;
        self
    }

    /// Sets how long running handlers may take to finish during shutdown; 30 s by default.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.runner.grace = grace;
        self
    }

    /// Sets the sweep interval, the maximum time between two claims; 100 ms to 1 min, 1 s by
    /// default.
    ///
    /// A sweep is a claim without any wake-up hint. It bounds the lateness of jobs whose hints are
    /// lost.
    pub fn sweep(mut self, sweep: Duration) -> Self {
        self.runner.sweep = sweep;
        self
    }

    /// Validates everything and logs the table of handlers.
    ///
    /// # Errors
    /// - `Duplicate`: two handlers have the same code (both source locations are named), or two
    ///   runners the same name;
    /// - `Unhandled`: there are no handlers, or none for a queue given to [`queue`](Self::queue),
    ///   [`only`](Self::only) or, without `only`, in the configuration;
    /// - `MissingState`: a handler requires a `State<T>` that was not added;
    /// - `Config`: a setting is out of range;
    /// - `InvalidInput`: a code is not a valid queue name.
    pub fn build(self) -> Result<Runner> {
        self.build_inner(None).map_err(|error| error.operation("build the runner"))
    }

    /// Builds a runner without the handlers whose state was not given; also returns the
    /// `MissingState` errors of those handlers by queue.
    ///
    /// After [`only`](Self::only) a missing state is an error, as in [`build`](Self::build).
    #[doc(hidden)]
    pub fn build_with_given_state(self) -> Result<(Runner, BTreeMap<QueueName, Error>)> {
        let mut missing = BTreeMap::new();
        let runner = self.build_inner(Some(&mut missing));
        Ok((runner.map_err(|error| error.operation("build the runner"))?, missing))
    }

    /// [`build`](Self::build), then [`Runner::run_until`].
    ///
    /// # Errors
    /// As [`build`](Self::build) and [`Runner::run_until`].
    pub async fn run_until<T>(self, shutdown: impl Future<Output = T>) -> Result<()> {
        self.build()?.run_until(shutdown).await
    }

    /// With `missing_state`, handlers whose state is missing are left out and their errors put
    /// there. Without it, such an error is returned.
    fn build_inner(self, missing_state: Option<&mut BTreeMap<QueueName, Error>>) -> Result<Runner> {
        self.runner.validate()?;
        let mut registry = if self.use_linked { Registry::linked()? } else { Registry::default() };
        for handler in self.handlers {
            registry.insert(handler?)?;
        }
        let mut settings = Vec::new();
        for (queue, queue_settings) in self.settings {
            let queue = queue?;
            registry.expect(&queue)?;
            settings.push((queue, queue_settings));
        }
        let shared = self.dq.shared();
        let is_restricted = self.only.is_some();
        match self.only {
            Some(only) => registry.retain(&only.into_iter().collect::<Result<Vec<_>>>()?)?,
            None => {
                for queue in shared.queues.keys() {
                    registry.expect(queue).map_err(|error| {
                        let remedy = error.remedy_text().unwrap_or_default().to_owned();
                        error.remedy(format!(
                            "it is in the configuration; {remedy}; if another service handles it, \
                             list the queues of this one with `.only([…])`"
                        ))
                    })?;
                }
            }
        }
        if registry.is_empty() {
            return Err(Error::new(ErrorKind::Unhandled, "the runner has no handlers").remedy(
                "annotate a function with #[delay_handler(\"CODE\")]; if it is in another crate, \
                 name that crate in code: `use my_handlers as _;`",
            ));
        }
        match missing_state {
            Some(missing) if !is_restricted => {
                *missing = registry.remove_without_state(&self.state)
            }
            _ => registry.expect_state(&self.state)?,
        }
        let queues = registry.iter().map(|handler| {
            let queue = handler.queue.clone();
            // Later calls of `queue` override earlier ones.
            let builder_settings = settings
                .iter()
                .rev()
                .filter(|(name, _)| *name == queue)
                .fold(QueueSettings::default(), |merged, (_, below)| merged.over(below.clone()));
            let policy = builder_settings
                .over(shared.queues.get(&queue).cloned().unwrap_or_default())
                .over(shared.defaults.clone())
                .over(handler.settings.clone())
                .policy(&queue)?;
            Ok(ServedQueue { queue, handler: Arc::clone(handler), policy })
        });
        let queues: Vec<ServedQueue> = queues.collect::<Result<_>>()?;
        let name = self.name.unwrap_or_else(|| {
            let random = shared.environment.entropy.bits() & 0xffff_ffff;
            format!("{}-{random:08x}", std::process::id())
        });
        let name_guard = shared.reserve_runner_name(&name)?;
        let mut stores = vec![Arc::clone(&shared.stores.main)];
        stores.extend(shared.stores.drain.iter().cloned());
        let concurrency = self.runner.concurrency;
        let queue_slots = queues.iter().map(|served| served.policy.concurrency).collect();
        let backend = shared.stores.main.name();
        tracing::info!(runner = %name, backend, concurrency, "a runner is ready");
        tracing::info!("handlers:{}", registry.table());
        let index_of = queues.iter().enumerate().map(|(i, served)| (served.queue.clone(), i));
        let runner = RunnerShared {
            name: name.into(),
            slots: Arc::new(Slots::new(concurrency, queue_slots, stores.len())),
            index_of: index_of.collect(),
            queues,
            middleware: self.middleware,
            state: Arc::new(self.state),
            environment: shared.environment.clone(),
            observers: self.observers,
            settings: self.runner,
            limits: shared.limits.clone(),
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
        };
        Ok(Runner::new(runner, stores, name_guard))
    }
}

impl std::fmt::Debug for RunnerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunnerBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}
