//! Builds a runner; handlers, state and settings are validated before the first job.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::events::{Observer, Observers};
use super::late;
use super::run::Runner;
use super::shared::{RunnerShared, ServedQueue};
use super::slots::Slots;
use crate::backend::Backend;
use crate::client::Dq;
use crate::config::{QueueSettings, RunnerSettings, ScheduleSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{
    DelayHandler, Handler, HandlerFn, Middleware, RawHandler, Registration, Registry, StateMap,
    forward_handler,
};
use crate::ingress::Ingress;
use crate::model::QueueName;
use crate::schedules::{self, Declarations};

/// Builder for a [`Runner`]; see [`Dq::runner`].
///
/// Invalid arguments become errors in [`build`](Self::build) and [`run_until`](Self::run_until).
#[must_use = "a runner does nothing until it is run"]
pub struct RunnerBuilder {
    dq: Dq,
    name: Option<String>,
    use_linked: bool,
    handlers: Vec<Result<Handler>>,
    only: Option<Vec<Result<QueueName>>>,
    settings: Vec<(Result<QueueName>, QueueSettings)>,
    state: StateMap,
    middleware: Vec<Arc<dyn Middleware>>,
    observers: Observers,
    runner: RunnerSettings,
    stores_schedules: bool,
    takes_messages: bool,
}

impl Dq {
    /// Returns a runner builder with the `#[delay_handler]` functions of all linked crates.
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
            stores_schedules: true,
            takes_messages: true,
            dq,
        }
    }

    /// Adds state: handlers get a clone of the value as `State<T>`.
    ///
    /// A later value of the same type replaces it. `State<Dq>` is always present.
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

    /// Adds a handler that gets encoded payloads from a queue.
    #[track_caller]
    pub fn raw_handler(mut self, queue: impl AsRef<str>, handler: impl RawHandler) -> Self {
        let caller = std::panic::Location::caller();
        let location = format!("{}:{}", caller.file(), caller.line());
        let name = std::any::type_name_of_val(&handler);
        self.handlers.push(
            QueueName::new(queue)
                .map(|queue| Handler::from_raw(queue, name, location, Arc::new(handler))),
        );
        self
    }

    /// Adds a `#[delay_handler]` function explicitly.
    /// Only needed where functions do not register themselves, such as after
    /// [`without_linked_handlers`](Self::without_linked_handlers).
    pub fn register<H: HandlerFn>(mut self) -> Self {
        match Registration::of::<H>().handlers() {
            Ok(handlers) => self.handlers.extend(handlers.into_iter().map(Ok)),
            Err(error) => self.handlers.push(Err(error)),
        }
        self
    }

    /// Ignores the handlers of linked crates; uses only explicitly added ones.
    pub fn without_linked_handlers(mut self) -> Self {
        self.use_linked = false;
        self
    }

    /// Does not store the schedules that the program declares.
    ///
    /// Schedules already in the store still run.
    pub fn without_schedules(mut self) -> Self {
        self.stores_schedules = false;
        self
    }

    /// Ignores the configuration's `[[ingress]]`.
    ///
    /// Use it if your program runs its [`Ingress`](crate::Ingress) itself.
    pub fn without_ingress(mut self) -> Self {
        self.takes_messages = false;
        self
    }

    /// Serves only these queues; each needs a handler.
    pub fn only<N: AsRef<str>>(mut self, queues: impl IntoIterator<Item = N>) -> Self {
        self.only = Some(queues.into_iter().map(QueueName::new).collect());
        self
    }

    /// Overrides one queue's settings from the configuration and the attribute.
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

    /// Sets the runner's name in logs and in the store; generated by default.
    ///
    /// Runners of one [`Dq`] need different names. A runner keeps its name until its last blocking
    /// handler has ended.
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

    /// Sets the sweep interval, the maximum time between two claims.
    ///
    /// 100 ms to 1 min; 1 s by default. A sweep finds jobs whose wake-up hints are lost.
    pub fn sweep(mut self, sweep: Duration) -> Self {
        self.runner.sweep = sweep;
        self
    }

    /// Validates everything and logs the handler table.
    ///
    /// # Errors
    /// - `Duplicate`: two handlers have the same code or two schedules the same name (the error
    ///   names both places), or two runners the same name;
    /// - `Unhandled`: there are no handlers, or none for a queue given to [`queue`](Self::queue),
    ///   [`only`](Self::only) or, without `only`, in the configuration;
    /// - `MissingState`: a handler requires a `State<T>` that you did not add;
    /// - `Config`: a setting is out of range, or a configured forward or ingress cannot be used;
    /// - `Unsupported`: a schedule is declared and the store cannot keep schedules, a handler has
    ///   an escalation and the store does not support steps, or an ingress is configured and the
    ///   store cannot pin ids;
    /// - `InvalidInput`: a code is reserved or not a valid queue name, or a declared schedule is
    ///   invalid.
    pub fn build(self) -> Result<Runner> {
        self.build_inner(None).map_err(|error| error.operation("build the runner"))
    }

    /// Builds a runner without handlers whose state is missing; also returns their errors.
    ///
    /// After [`only`](Self::only), missing state is an error as in [`build`](Self::build).
    #[doc(hidden)]
    pub fn build_with_given_state(self) -> Result<(Runner, BTreeMap<QueueName, Error>)> {
        let mut missing = BTreeMap::new();
        let runner = self.build_inner(Some(&mut missing));
        Ok((runner.map_err(|error| error.operation("build the runner"))?, missing))
    }

    /// Calls [`build`](Self::build), then [`Runner::run_until`].
    pub async fn run_until<T>(self, shutdown: impl Future<Output = T>) -> Result<()> {
        self.build()?.run_until(shutdown).await
    }

    /// Collects handlers with missing state in `missing_state`, or fails without it.
    fn build_inner(self, missing_state: Option<&mut BTreeMap<QueueName, Error>>) -> Result<Runner> {
        self.runner.validate()?;
        let mut registry = if self.use_linked { Registry::linked()? } else { Registry::default() };
        for handler in self.handlers {
            registry.insert(handler?)?;
        }
        let shared = self.dq.shared();
        let is_restricted = self.only.is_some();
        let only =
            self.only.map(|only| only.into_iter().collect::<Result<Vec<_>>>()).transpose()?;
        for (queue, queue_settings) in &shared.queues {
            let is_served = only.as_ref().is_none_or(|only| only.contains(queue));
            if let Some(forward) = queue_settings.forward.as_ref().filter(|_| is_served) {
                registry.insert(forward_handler(queue, forward)?)?;
            }
        }
        let ingress = if self.takes_messages {
            Ingress::of(&self.dq, only.as_deref())?
        } else {
            Ingress::none(&self.dq)
        };
        let mut settings = Vec::new();
        for (queue, queue_settings) in self.settings {
            let queue = queue?;
            registry.expect(&queue)?;
            let of_others = [
                ("history", queue_settings.history.is_some()),
                ("lateness", queue_settings.lateness.is_some()),
                ("spread", queue_settings.spread.is_some()),
            ];
            if let Some((setting, _)) = of_others.into_iter().find(|(_, is_set)| *is_set) {
                return Err(Error::new(
                    ErrorKind::Config,
                    format!("a runner cannot set the {setting} of queue {queue}"),
                )
                .remedy("set it in `[defaults]` or `[queues.…]` of the configuration"));
            }
            settings.push((queue, queue_settings));
        }
        match only {
            Some(only) => registry.retain(&only)?,
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
        if let Some(handler) = registry.iter().find(|handler| !handler.escalation.steps.is_empty())
            && !shared.stores.main.capabilities().again
        {
            let what =
                format!("next steps of jobs, which the escalation of {} needs", handler.queue);
            return Err(Error::unsupported(shared.stores.main.name(), &what));
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
            Ok(ServedQueue::new(queue, Arc::clone(handler), policy))
        });
        let mut queues: Vec<ServedQueue> = queues.collect::<Result<_>>()?;
        late::refuse_rings(&queues)?;
        let declarations = if self.stores_schedules {
            declarations(&self.dq, &registry)?
        } else {
            Declarations::new(&self.dq)
        };
        if schedules::is_supported(shared.stores.main.capabilities()) {
            let handler = Arc::new(schedules::handler(&self.dq));
            queues.push(ServedQueue::new(schedules::queue(), handler, schedules::policy()));
        }
        let name = self.name.unwrap_or_else(|| {
            let random = shared.environment.entropy.bits() & 0xffff_ffff;
            format!("{}-{random:08x}", std::process::id())
        });
        let name_guard = shared.reserve_runner_name(&name)?;
        let mut stores = vec![Arc::clone(&shared.stores.main)];
        stores.extend(shared.stores.drain.iter().cloned());
        let concurrency = self.runner.concurrency;
        let slots = |served: &ServedQueue| (served.policy.concurrency, served.queue.is_reserved());
        let queue_slots: Vec<_> = queues.iter().map(slots).collect();
        let backend = shared.stores.main.name();
        tracing::info!(runner = %name, backend, concurrency, "a runner is ready");
        tracing::info!("handlers:{}", registry.table());
        let index_of = queues.iter().enumerate().map(|(i, served)| (served.queue.clone(), i));
        let runner = RunnerShared {
            name: name.into(),
            is_restricted,
            slots: Arc::new(Slots::new(
                concurrency,
                queue_slots,
                stores.len(),
                Arc::clone(&shared.environment.clock),
                self.observers.clone(),
            )),
            index_of: index_of.collect(),
            built: shared.environment.clock.now(),
            queues,
            middleware: self.middleware,
            state: Arc::new(self.state),
            client: Arc::clone(shared),
            observers: self.observers,
            settings: self.runner,
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
        };
        Ok(Runner::new(runner, stores, declarations, ingress, name_guard))
    }
}

fn declarations(dq: &Dq, registry: &Registry) -> Result<Declarations> {
    let mut declarations = Declarations::new(dq);
    let mut declare = |name: &str, settings: &ScheduleSettings, aliases, place: &str| {
        let spec = settings.spec(name).map_err(|error| {
            error.remedy(format!("correct the schedule, which is declared by {place}"))
        });
        declarations.insert(name, spec?, aliases, place)
    };
    for handler in registry.iter() {
        if let Some(mut settings) = handler.schedule.clone() {
            settings.queue = Some(handler.queue.clone());
            let place = format!("the handler at {}", handler.location);
            declare(handler.queue.as_str(), &settings, handler.aliases, &place)?;
        }
    }
    for (name, settings) in &dq.shared().schedules {
        declare(name, settings, &[], &format!("[schedules.{name}] of the configuration"))?;
    }
    Ok(declarations)
}

impl std::fmt::Debug for RunnerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunnerBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}
