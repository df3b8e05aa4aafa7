//! A claim loop's subscription to its store's wake-up hints.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::events::Event;
use super::shared::RunnerShared;
use crate::backend::{Backend, Checked, Hint, Wakeups};
use crate::error::Result;
use crate::model::{QueueName, Timestamp};

/// How long a claim waits for a new subscription, so that the subscription misses no later job. A
/// longer wait would delay due jobs.
const PATIENCE: Duration = Duration::from_secs(1);

/// The hint subscription of one store. While it fails, sweeps find all jobs.
pub(super) struct Hints {
    runner: Arc<RunnerShared>,
    store: Arc<Checked>,
    queues: Arc<[QueueName]>,
    state: State,
    /// Logged once.
    has_failed: bool,
}

enum State {
    Unsubscribed,
    Subscribing(BoxFuture<'static, Result<Wakeups>>),
    Subscribed(Wakeups),
}

impl Hints {
    pub(super) fn new(runner: &Arc<RunnerShared>, store: &Arc<Checked>) -> Self {
        Self {
            runner: Arc::clone(runner),
            store: Arc::clone(store),
            queues: runner.queues.iter().map(|served| served.queue.clone()).collect(),
            state: State::Unsubscribed,
            has_failed: false,
        }
    }

    /// Returns early if the store is slow; [`next`](Self::next) then completes the subscription.
    pub(super) async fn subscribe(&mut self) {
        if !matches!(self.state, State::Unsubscribed) {
            return;
        }
        let (runner, store) = (Arc::clone(&self.runner), Arc::clone(&self.store));
        let queues = Arc::clone(&self.queues);
        self.state = State::Subscribing(Box::pin(async move {
            runner.call("listen", store.listen(&queues)).await
        }));
        let runner = Arc::clone(&self.runner);
        tokio::select! {
            biased;
            () = self.subscribed() => {}
            () = async { runner.clock().sleep(PATIENCE).await } => {}
            () = runner.stop.cancelled() => {}
        }
    }

    /// Makes the next claim subscribe again, because hints may have been lost.
    pub(super) fn unsubscribe(&mut self) {
        self.state = State::Unsubscribed;
    }

    /// Waits for a hint, or for a slow subscription to complete. Cancellation safe.
    pub(super) async fn next(&mut self) -> Hint {
        match &mut self.state {
            State::Subscribed(wakeups) => wakeups.next().await,
            State::Subscribing(_) => {
                self.subscribed().await;
                // Jobs may have been scheduled between the last claim and the subscription.
                Hint { due: Timestamp::EPOCH }
            }
            State::Unsubscribed => std::future::pending().await,
        }
    }

    /// Cancellation safe.
    async fn subscribed(&mut self) {
        let State::Subscribing(answer) = &mut self.state else { return };
        match answer.await {
            Ok(wakeups) => {
                if std::mem::take(&mut self.has_failed) {
                    tracing::info!("the store sends wake-up hints again");
                }
                self.state = State::Subscribed(wakeups);
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    tracing::warn!(%error, "no wake-up hints; jobs are found by sweeps");
                }
                self.runner.observers.notify(&Event::StoreFailed(&error));
                self.state = State::Unsubscribed;
            }
        }
    }
}
