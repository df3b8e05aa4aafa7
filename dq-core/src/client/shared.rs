//! State shared by all clones of a client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::stores::Stores;
use crate::config::{Environment, QueueSettings, RunnerSettings, ScheduleSettings, TypedSettings};
use crate::model::{JobId, Limits, QueueName};
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
}

impl ClientShared {
    pub(super) fn new_id(&self) -> JobId {
        self.environment.entropy.job_id(self.environment.clock.now())
    }

    /// Returns a queue's `spread` setting.
    pub(super) fn spread_of(&self, queue: &QueueName) -> Option<Duration> {
        self.queues.get(queue).and_then(|settings| settings.spread).or(self.defaults.spread)
    }

    /// Returns a name that no other runner of the store has: several processes may set the same one.
    pub(crate) fn runner_name(&self, beginning: &str) -> String {
        let random = self.environment.entropy.bits() & 0xffff_ffff;
        format!("{beginning}-{random:08x}")
    }
}
