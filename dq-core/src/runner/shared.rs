//! The state that all loops of a runner share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::events::{Event, Observers};
use super::recent::RecentRuns;
use super::slots::Slots;
use super::start_window::StartWindow;
use crate::client::ClientShared;
use crate::clock::Clock;
use crate::config::{Environment, QueuePolicy, RunnerSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Handler, Middleware, StateMap};
use crate::model::{Limits, QueueName, Timestamp};

/// Maximum duration of a call of the store, so that one that is never answered does not stop a loop.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The state that all loops of a runner share.
#[derive(Debug)]
pub(super) struct RunnerShared {
    pub(super) name: Arc<str>,
    /// Whether the runner serves only some queues by choice: [`only`](super::RunnerBuilder::only).
    pub(super) is_restricted: bool,
    /// The queues of this runner. `index_of` and `slots` refer to them by their indexes.
    pub(super) queues: Vec<ServedQueue>,
    pub(super) index_of: HashMap<QueueName, usize>,
    pub(super) slots: Arc<Slots>,
    pub(super) middleware: Vec<Arc<dyn Middleware>>,
    pub(super) state: Arc<StateMap>,
    pub(super) environment: Environment,
    /// Schedules late jobs in other queues.
    pub(super) client: Arc<ClientShared>,
    pub(super) observers: Observers,
    /// When the runner was built.
    pub(super) built: Timestamp,
    /// By the index of the queue.
    pub(super) recent: Vec<RecentRuns>,
    /// By the index of the queue; `None` if it has no lateness objective.
    pub(super) starts: Vec<Option<StartWindow>>,
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

    /// The recent runs of a queue of this runner.
    pub(super) fn recent_of(&self, queue: &QueueName) -> Option<&RecentRuns> {
        self.recent.get(*self.index_of.get(queue)?)
    }

    /// The index of a queue and its starts, if it has a lateness objective.
    pub(super) fn starts_of(&self, queue: &QueueName) -> Option<(usize, &StartWindow)> {
        let index = *self.index_of.get(queue)?;
        Some((index, self.starts.get(index)?.as_ref()?))
    }

    /// Waits for the answer to a call of the store.
    ///
    /// # Errors
    /// That of the call; `OutcomeUnknown` if it takes longer than `limit`. The call is then dropped.
    pub(super) async fn answer<T>(
        &self,
        operation: &'static str,
        limit: Duration,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let sent_at = self.clock().elapsed();
        let answer = tokio::select! {
            biased;
            answer = call => answer,
            // The timer is created only if the store does not answer at once.
            () = async { self.clock().sleep(limit).await } => {
                let limit = humantime::format_duration(limit);
                let message = format!("the store did not answer within {limit}");
                Err(Error::new(ErrorKind::OutcomeUnknown, message).operation(operation))
            }
        };
        let duration = self.clock().elapsed().saturating_sub(sent_at);
        self.observers.notify(&Event::StoreCalled { operation, duration });
        answer
    }

    pub(super) fn serves(&self, queue: &QueueName) -> bool {
        self.index_of.contains_key(queue)
    }
}
