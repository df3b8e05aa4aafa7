//! A claim loop's subscription to its store's wake-up hints.

use std::sync::Arc;

use futures_util::stream::{BoxStream, StreamExt, unfold};

use super::events::Event;
use super::shared::RunnerShared;
use crate::backend::{Backend, Checked, Hint, Wakeups};
use crate::model::QueueName;

/// What a subscription tells the claim loop.
pub(super) enum Wakeup {
    /// The subscription is new: jobs may have been scheduled since the last claim.
    Subscribed,
    Hint(Hint),
}

/// The hint subscription of one store. While it fails, sweeps find all jobs.
pub(super) struct Hints {
    runner: Arc<RunnerShared>,
    store: Arc<Checked>,
    wakeups: BoxStream<'static, Wakeup>,
}

impl Hints {
    pub(super) fn new(runner: &Arc<RunnerShared>, store: &Arc<Checked>) -> Self {
        let (runner, store) = (Arc::clone(runner), Arc::clone(store));
        let wakeups = subscribe(&runner, &store);
        Self { runner, store, wakeups }
    }

    /// Subscribes again, because hints may have been lost.
    pub(super) fn renew(&mut self) {
        self.wakeups = subscribe(&self.runner, &self.store);
    }

    /// Waits for the store. Cancellation safe.
    pub(super) async fn next(&mut self) -> Wakeup {
        match self.wakeups.next().await {
            Some(wakeup) => wakeup,
            None => std::future::pending().await,
        }
    }
}

fn subscribe(runner: &Arc<RunnerShared>, store: &Arc<Checked>) -> BoxStream<'static, Wakeup> {
    let (runner, store) = (Arc::clone(runner), Arc::clone(store));
    let wakeups = unfold(None, move |subscription: Option<Wakeups>| {
        let (runner, store) = (Arc::clone(&runner), Arc::clone(&store));
        async move {
            match subscription {
                Some(mut wakeups) => Some((Wakeup::Hint(wakeups.next().await), Some(wakeups))),
                None => Some((Wakeup::Subscribed, Some(listen(&runner, &store).await))),
            }
        }
    });
    wakeups.boxed()
}

/// Calls the store until it accepts the subscription.
async fn listen(runner: &RunnerShared, store: &Checked) -> Wakeups {
    let queues: Vec<QueueName> = runner.queues.iter().map(|served| served.queue.clone()).collect();
    let mut has_failed = false;
    loop {
        match runner.call("listen", store.listen(&queues)).await {
            Ok(wakeups) => {
                if has_failed {
                    tracing::info!("the store sends wake-up hints again");
                }
                return wakeups;
            }
            Err(error) => {
                if !has_failed {
                    tracing::warn!(%error, "no wake-up hints; jobs are found by sweeps");
                }
                has_failed = true;
                runner.observers.notify(&Event::StoreFailed(&error));
                runner.clock().sleep(runner.settings.sweep).await;
            }
        }
    }
}
