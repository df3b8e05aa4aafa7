//! Collects what a runner needs: handlers, state and settings.

use std::sync::Arc;
use std::time::Duration;

use super::events::{Observer, Observers};
use crate::client::Dq;
use crate::config::{QueueSettings, RunnerSettings};
use crate::error::Result;
use crate::handler::{
    DelayHandler, Handler, HandlerFn, Middleware, RawHandler, Registration, StateMap,
};
use crate::model::QueueName;

/// Builder for a [`Runner`](crate::Runner); see [`Dq::runner`].
///
/// Invalid arguments become errors in [`build`](Self::build) and [`run_until`](Self::run_until).
#[must_use = "a runner does nothing until it is run"]
pub struct RunnerBuilder {
    pub(super) dq: Dq,
    pub(super) name: Option<String>,
    pub(super) use_linked: bool,
    pub(super) handlers: Vec<Result<Handler>>,
    pub(super) only: Option<Vec<Result<QueueName>>>,
    pub(super) settings: Vec<(Result<QueueName>, QueueSettings)>,
    pub(super) state: StateMap,
    pub(super) middleware: Vec<Arc<dyn Middleware>>,
    pub(super) observers: Observers,
    pub(super) runner: RunnerSettings,
    pub(super) stores_schedules: bool,
    pub(super) takes_messages: bool,
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

    /// Sets the beginning of the runner's name in logs and in the store; by default, the process
    /// id. Random digits follow, so that runners of several processes may have the same setting.
    ///
    /// 1 to 128 bytes without control characters, or [`build`](Self::build) fails.
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
}

impl std::fmt::Debug for RunnerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunnerBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}
