//! How a [`Dq`] is made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::{Dq, Shared, Stores};
use crate::backend::{Backend, Checked};
use crate::clock::{Clock, SystemClock};
use crate::config::{
    BackendConfig, Config, Environment, QueueSettings, RunnerSettings, backend_from_url,
};
use crate::entropy::Entropy;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Limits, QueueName};
use crate::trace::{DefaultPropagator, Propagator};

/// Everything about a [`Dq`] that can differ from the defaults.
#[derive(Debug, Default)]
pub struct DqBuilder {
    source: Option<Source>,
    drain: Vec<Box<dyn BackendConfig>>,
    clock: Option<Arc<dyn Clock>>,
    entropy: Option<Arc<Entropy>>,
    propagator: Option<Arc<dyn Propagator>>,
    limits: Limits,
    defaults: QueueSettings,
    queues: BTreeMap<QueueName, QueueSettings>,
    runner: RunnerSettings,
    refused: Option<Error>,
}

#[derive(Debug)]
enum Source {
    Config(Box<dyn BackendConfig>),
    Backend(Arc<dyn Backend>),
}

impl DqBuilder {
    /// Takes everything that a configuration says; what is called after this wins.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.source = Some(Source::Config(config.backend));
        self.drain = config.drain;
        self.defaults = config.defaults;
        self.queues = config.queues;
        self.runner = config.runner;
        self.limits = config.limits.into();
        self
    }

    /// The store, by URL.
    #[must_use]
    pub fn url(mut self, url: &str) -> Self {
        match backend_from_url(url) {
            Ok(config) => self.source = Some(Source::Config(config)),
            Err(error) => self.refused = Some(error),
        }
        self
    }

    /// The store, by its settings.
    #[must_use]
    pub fn backend_config(mut self, config: Box<dyn BackendConfig>) -> Self {
        self.source = Some(Source::Config(config));
        self
    }

    /// The store itself.
    #[must_use]
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.source = Some(Source::Backend(backend));
        self
    }

    /// Another store that is consumed until empty, and not produced to.
    #[must_use]
    pub fn drain(mut self, config: Box<dyn BackendConfig>) -> Self {
        self.drain.push(config);
        self
    }

    /// Another clock than the machine's; stores with a clock of their own go by that.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Randomness from a seed instead of the operating system.
    #[must_use]
    pub fn entropy(mut self, entropy: Entropy) -> Self {
        self.entropy = Some(Arc::new(entropy));
        self
    }

    /// Where the trace context of new jobs comes from.
    #[must_use]
    pub fn propagator(mut self, propagator: impl Propagator) -> Self {
        self.propagator = Some(Arc::new(propagator));
        self
    }

    /// Bounds on what is accepted.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Settings of every queue that has none of its own.
    #[must_use]
    pub fn defaults(mut self, settings: QueueSettings) -> Self {
        self.defaults = settings;
        self
    }

    /// Opens the store.
    ///
    /// # Errors
    /// `Config` if no store was named or its settings cannot be used; otherwise what it says.
    pub async fn connect(self) -> Result<Dq> {
        if let Some(refused) = self.refused {
            return Err(refused.operation("connect"));
        }
        self.runner.validate()?;
        let environment = Environment {
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock)),
            entropy: self.entropy.unwrap_or_else(|| Arc::new(Entropy::from_os())),
        };
        let checked = |backend| {
            let clock = Arc::clone(&environment.clock);
            Arc::new(Checked::new(backend, self.limits.clone(), clock))
        };
        let backend = match self.source {
            Some(Source::Backend(backend)) => backend,
            Some(Source::Config(config)) => {
                config.connect(&environment).await.map_err(|error| error.operation("connect"))?
            }
            None => {
                return Err(Error::new(ErrorKind::Config, "no backend was named")
                    .remedy("call `.url(…)`, `.config(…)` or `.backend(…)`")
                    .operation("connect"));
            }
        };
        let backend = checked(backend);
        let mut drain = Vec::new();
        for config in &self.drain {
            let source = config.connect(&environment).await;
            drain.push(checked(source.map_err(|error| error.operation("connect to a drain"))?));
        }
        Ok(Dq {
            shared: Arc::new(Shared {
                stores: Stores { main: backend, drain },
                propagator: self.propagator.unwrap_or_else(|| Arc::new(DefaultPropagator)),
                limits: self.limits,
                defaults: self.defaults,
                queues: self.queues,
                runner: self.runner,
                environment,
                runner_names: Mutex::default(),
            }),
        })
    }
}
