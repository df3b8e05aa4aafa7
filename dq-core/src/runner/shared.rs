//! The state shared by all loops of a runner.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::events::{Event, Observers};
use super::recent::{RecentRuns, StartWindow};
use super::slots::{QueueIndex, Slots};
use crate::client::ClientShared;
use crate::clock::Clock;
use crate::config::{QueuePolicy, RunnerSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Handler, Middleware, StateMap};
use crate::model::{Backoff, QueueName, Timestamp, format_exact_duration};

/// An unanswered call must not stop a loop.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Delays between repeated claims and subscriptions.
pub(super) const RETRY: Backoff = Backoff {
    initial: Duration::from_millis(100),
    factor: 2.0,
    max: Duration::from_secs(5),
    jitter: 0.0,
};

#[derive(Debug)]
pub(super) struct RunnerShared {
    pub(super) name: Arc<str>,
    pub(super) is_restricted: bool,
    /// A queue's position here is its [`QueueIndex`].
    pub(super) queues: Vec<ServedQueue>,
    pub(super) index_of: HashMap<QueueName, QueueIndex>,
    pub(super) slots: Arc<Slots>,
    pub(super) middleware: Vec<Arc<dyn Middleware>>,
    pub(super) state: Arc<StateMap>,
    pub(super) client: Arc<ClientShared>,
    pub(super) observers: Observers,
    pub(super) built_at: Timestamp,
    pub(super) settings: RunnerSettings,
    /// Fires when no more jobs may be claimed.
    pub(super) stop: CancellationToken,
    /// Fires when running handlers must be dropped and their jobs released.
    pub(super) abort: CancellationToken,
}

#[derive(Debug)]
pub(super) struct ServedQueue {
    pub(super) queue: QueueName,
    pub(super) handler: Arc<Handler>,
    pub(super) policy: QueuePolicy,
    pub(super) recent: RecentRuns,
    /// The recent starts; `None` without a lateness objective.
    pub(super) starts: Option<StartWindow>,
}

impl ServedQueue {
    pub(super) fn new(queue: QueueName, handler: Arc<Handler>, policy: QueuePolicy) -> Self {
        let starts = policy.lateness.map(StartWindow::new);
        Self { queue, handler, policy, recent: RecentRuns::new(), starts }
    }
}

impl RunnerShared {
    pub(super) fn now(&self) -> Timestamp {
        self.clock().now()
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.client.environment.clock
    }

    pub(super) fn starts_of(&self, queue: &QueueName) -> Option<(QueueIndex, &StartWindow)> {
        let index = *self.index_of.get(queue)?;
        Some((index, self.queues[index].starts.as_ref()?))
    }

    /// Makes a store call, for at most [`CALL_TIMEOUT`].
    pub(super) async fn call<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.call_within(CALL_TIMEOUT, operation, call).await
    }

    /// Makes a store call and reports its duration to the observers.
    ///
    /// # Errors
    /// The call's error; `OutcomeUnknown` if the call takes longer than `limit` and is dropped.
    pub(super) async fn call_within<T>(
        &self,
        limit: Duration,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let sent_at = self.clock().elapsed();
        let answer = tokio::select! {
            biased;
            answer = call => answer,
            // The timer is created only if the store does not answer at once.
            () = async { self.clock().sleep(limit).await } => {
                let limit = format_exact_duration(limit);
                let message = format!("the store did not answer within {limit}");
                Err(Error::new(ErrorKind::OutcomeUnknown, message).operation(operation))
            }
        };
        let duration = self.clock().elapsed().saturating_sub(sent_at);
        self.observers.notify(&Event::StoreCalled { operation, duration });
        answer
    }
}
