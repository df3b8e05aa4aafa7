//! The state that all loops of a runner share.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::events::Observers;
use super::slots::Slots;
use crate::clock::Clock;
use crate::config::{Environment, QueuePolicy, RunnerSettings};
use crate::handler::{Handler, Middleware, StateMap};
use crate::model::{Limits, QueueName, Timestamp};

/// The state that all loops of a runner share.
#[derive(Debug)]
pub(super) struct RunnerShared {
    pub(super) name: Arc<str>,
    /// The queues of this runner. `index_of` and `slots` refer to them by their indexes.
    pub(super) queues: Vec<ServedQueue>,
    pub(super) index_of: HashMap<QueueName, usize>,
    pub(super) slots: Arc<Slots>,
    pub(super) middleware: Vec<Arc<dyn Middleware>>,
    pub(super) state: Arc<StateMap>,
    pub(super) environment: Environment,
    pub(super) observers: Observers,
    pub(super) settings: RunnerSettings,
    pub(super) limits: Limits,
    /// Fires when no more jobs may be claimed.
    pub(super) stop: CancellationToken,
    /// Fires when running handlers must be dropped and their jobs released.
    pub(super) abort: CancellationToken,
}

/// A queue with its handler and its complete settings.
#[derive(Debug)]
pub(super) struct ServedQueue {
    pub(super) queue: QueueName,
    pub(super) handler: Arc<Handler>,
    pub(super) policy: QueuePolicy,
}

impl RunnerShared {
    pub(super) fn now(&self) -> Timestamp {
        self.environment.clock.now()
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.environment.clock
    }

    pub(super) fn serves(&self, queue: &QueueName) -> bool {
        self.index_of.contains_key(queue)
    }
}
