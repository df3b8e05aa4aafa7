//! State shared by all clones of a client.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::stores::Stores;
use crate::config::{Environment, QueueSettings, RunnerSettings, ScheduleSettings, TypedSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{JobId, Limits, QueueName};
use crate::sync::lock;
use crate::trace::Propagator;

#[derive(Debug)]
pub(crate) struct ClientShared {
    pub(crate) stores: Stores,
    pub(crate) environment: Environment,
    pub(crate) propagator: Arc<dyn Propagator>,
    pub(crate) limits: Limits,
    pub(crate) defaults: QueueSettings,
    pub(crate) queues: BTreeMap<QueueName, QueueSettings>,
    pub(crate) ingress: Vec<TypedSettings>,
    /// The configured schedules, by name.
    pub(crate) schedules: BTreeMap<String, ScheduleSettings>,
    pub(crate) runner: RunnerSettings,
    /// The names of existing runners.
    pub(super) runner_names: Mutex<BTreeSet<String>>,
}

impl ClientShared {
    pub(super) fn new_id(&self) -> JobId {
        self.environment.entropy.job_id(self.environment.clock.now())
    }

    /// Returns a queue's `spread` setting.
    pub(super) fn spread_of(&self, queue: &QueueName) -> Option<Duration> {
        self.queues.get(queue).and_then(|settings| settings.spread).or(self.defaults.spread)
    }

    /// Reserves a runner's name until the guard is dropped.
    pub(crate) fn reserve_runner_name(self: &Arc<Self>, name: &str) -> Result<RunnerNameGuard> {
        let mut names = lock(&self.runner_names);
        if !names.insert(name.to_owned()) {
            return Err(Error::new(
                ErrorKind::Duplicate,
                format!("a runner called {name:?} is running already"),
            )
            .remedy("leave the name out, or give each runner its own"));
        }
        Ok(RunnerNameGuard { shared: Arc::clone(self), name: name.to_owned() })
    }
}

/// Releases a runner name when dropped.
#[derive(Debug)]
pub(crate) struct RunnerNameGuard {
    shared: Arc<ClientShared>,
    name: String,
}

impl Drop for RunnerNameGuard {
    fn drop(&mut self) {
        lock(&self.shared.runner_names).remove(&self.name);
    }
}
