//! Opens the stores of a client.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::dq::Dq;
use super::shared::ClientShared;
use super::stores::Stores;
use crate::backend::{Backend, Checked};
use crate::clock::{Clock, SystemClock};
use crate::config::{
    BackendConfig, Config, Environment, QueueSettings, RunnerSettings, ScheduleSettings,
    TypedSettings, backend_from_url,
};
use crate::entropy::Entropy;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{HistoryLimits, Limits, QueueName};
use crate::trace::{DefaultPropagator, Propagator};

impl Dq {
    /// Opens a store by URL, such as `sqlite://jobs.db` or `memory:`.
    ///
    /// # Errors
    /// `Config` if the URL cannot be used, `Unavailable` if the store cannot be reached,
    /// `Incompatible` if its data has an unknown version.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().backend_config(backend_from_url(url)?).connect().await
    }

    /// Opens the stores in a configuration file and environment variables; see [`Config`].
    ///
    /// # Errors
    /// As [`Self::connect`]; `Config` names the file or variable and the key.
    pub async fn from_config(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder().config(Config::from_path(path)?).connect().await
    }

    /// Opens the stores from environment variables; see [`Config::from_env`].
    ///
    /// # Errors
    /// As [`Self::connect`]; `Config` names the variable and the key.
    pub async fn from_env() -> Result<Self> {
        Self::builder().config(Config::from_env()?).connect().await
    }

    /// Returns a builder with default settings.
    pub fn builder() -> DqBuilder {
        DqBuilder::default()
    }
}

/// Builds a [`Dq`]; made by [`Dq::builder`].
#[must_use]
#[derive(Debug, Default)]
pub struct DqBuilder {
    main: Option<MainStore>,
    existing: bool,
    drain: Vec<Box<dyn BackendConfig>>,
    clock: Option<Arc<dyn Clock>>,
    entropy: Option<Arc<Entropy>>,
    propagator: Option<Arc<dyn Propagator>>,
    limits: Limits,
    defaults: QueueSettings,
    queues: BTreeMap<QueueName, QueueSettings>,
    ingress: Vec<TypedSettings>,
    schedules: BTreeMap<String, ScheduleSettings>,
    runner: RunnerSettings,
    error: Option<Error>,
}

#[derive(Debug)]
enum MainStore {
    Config(Box<dyn BackendConfig>),
    Backend(Arc<dyn Backend>),
}

impl DqBuilder {
    /// Applies a configuration: stores, settings and limits. Later calls override it.
    pub fn config(mut self, config: Config) -> Self {
        self.main = Some(MainStore::Config(config.backend));
        self.drain = config.drain;
        self.defaults = config.defaults;
        self.queues = config.queues;
        self.ingress = config.ingress;
        self.schedules = config.schedules;
        self.runner = config.runner;
        self.limits = config.limits.into();
        self
    }

    /// Sets the main store by URL.
    pub fn url(mut self, url: &str) -> Self {
        match backend_from_url(url) {
            Ok(config) => self.main = Some(MainStore::Config(config)),
            Err(error) => self.error = Some(error),
        }
        self
    }

    /// Sets the main store by its settings.
    pub fn backend_config(mut self, config: Box<dyn BackendConfig>) -> Self {
        self.main = Some(MainStore::Config(config));
        self
    }

    /// Sets an open backend as main store; it keeps its clock, randomness and history limits.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.main = Some(MainStore::Backend(backend));
        self
    }

    /// Opens the main store only if it exists.
    ///
    /// A program that inspects a store then creates none at a misspelt path.
    pub fn existing(mut self) -> Self {
        self.existing = true;
        self
    }

    /// Adds an existing store to drain: it gets no new jobs, and its jobs still run.
    pub fn drain(mut self, config: Box<dyn BackendConfig>) -> Self {
        self.drain.push(config);
        self
    }

    /// Sets the clock, such as a virtual one in tests. Stores with their own clock ignore it.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the source of randomness, such as a seeded one in tests.
    pub fn entropy(mut self, entropy: Entropy) -> Self {
        self.entropy = Some(Arc::new(entropy));
        self
    }

    /// Sets the trace context source for new jobs.
    pub fn propagator(mut self, propagator: impl Propagator) -> Self {
        self.propagator = Some(Arc::new(propagator));
        self
    }

    /// Sets the limits for payloads, headers and bulks.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets default queue settings, below each queue's own from [`Self::config`].
    pub fn defaults(mut self, settings: QueueSettings) -> Self {
        self.defaults = settings;
        self
    }

    /// Returns the main store's settings, such as to migrate it without opening it.
    ///
    /// # Errors
    /// `Config` if there is no main store, its URL cannot be used, or it is open.
    pub fn into_backend_config(self) -> Result<Box<dyn BackendConfig>> {
        match (self.error, self.main) {
            (Some(error), _) => Err(error),
            (None, Some(MainStore::Config(config))) => Ok(config),
            (None, Some(MainStore::Backend(_))) => {
                Err(Error::new(ErrorKind::Config, "the backend is open")
                    .remedy("call `.url(…)` or `.config(…)` instead of `.backend(…)`"))
            }
            (None, None) => Err(no_backend()),
        }
    }

    /// Opens the stores.
    ///
    /// # Errors
    /// `Config` if there is no main store, a setting cannot be used, or a required store does not
    /// exist; as [`Dq::connect`] for each store.
    pub async fn connect(self) -> Result<Dq> {
        if let Some(error) = self.error {
            return Err(error.operation("connect"));
        }
        self.runner.validate()?;
        let environment = Environment::new(
            self.clock.unwrap_or_else(|| Arc::new(SystemClock)),
            self.entropy.unwrap_or_else(|| Arc::new(Entropy::from_os())),
        )
        .history(history_limits(&self.defaults, &self.queues));
        let checked = |backend| {
            let clock = Arc::clone(&environment.clock);
            Arc::new(Checked::new(backend, self.limits.clone(), clock))
        };
        let backend = match self.main {
            Some(MainStore::Backend(backend)) => backend,
            Some(MainStore::Config(config)) => {
                let store = match self.existing {
                    true => config.connect_existing(&environment).await,
                    false => config.connect(&environment).await,
                };
                store.map_err(|error| error.operation("connect"))?
            }
            None => return Err(no_backend().operation("connect")),
        };
        let backend = checked(backend);
        let mut drain = Vec::new();
        for config in &self.drain {
            let store = config.connect_existing(&environment).await;
            drain.push(checked(
                store.map_err(|error| error.operation("connect to a drained store"))?,
            ));
        }
        Ok(Dq::new(ClientShared {
            stores: Stores { main: backend, drain },
            propagator: self.propagator.unwrap_or_else(|| Arc::new(DefaultPropagator)),
            limits: self.limits,
            defaults: self.defaults,
            queues: self.queues,
            ingress: self.ingress,
            schedules: self.schedules,
            runner: self.runner,
            environment,
        }))
    }
}

fn no_backend() -> Error {
    Error::new(ErrorKind::Config, "no backend was given")
        .remedy("call `.url(…)`, `.config(…)` or `.backend(…)`")
}

/// Collects the queues' `history` settings for the store.
fn history_limits(
    defaults: &QueueSettings,
    queues: &BTreeMap<QueueName, QueueSettings>,
) -> HistoryLimits {
    let mut limits = HistoryLimits { default: defaults.history, ..HistoryLimits::default() };
    for (queue, settings) in queues {
        if let Some(limit) = settings.history {
            limits.queues.insert(queue.clone(), limit);
        }
    }
    limits
}
