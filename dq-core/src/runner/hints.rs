//! A claim loop's subscription to its store's wake-up hints.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::stream::{BoxStream, StreamExt, pending, unfold};

use super::events::Event;
use super::shared::{RETRY, RunnerShared};
use crate::backend::{Backend, Checked, Hint, Wakeups};
use crate::model::QueueName;
use crate::sync::lock;

pub(super) enum Wakeup {
    /// The subscription is new: jobs may have been scheduled since the last claim.
    Subscribed,
    Hint(Hint),
}

/// The hint subscription of one store. While it fails, sweeps find all jobs.
pub(super) struct Hints {
    subscriber: Arc<Subscriber>,
    wakeups: BoxStream<'static, Wakeup>,
}

struct Subscriber {
    runner: Arc<RunnerShared>,
    store: Arc<Checked>,
    queues: Mutex<Vec<QueueName>>,
    /// Calls that failed since the store last accepted a subscription.
    failures: AtomicU32,
}

impl Hints {
    /// Begins without queues, and so without hints.
    pub(super) fn new(runner: &Arc<RunnerShared>, store: &Arc<Checked>) -> Self {
        let (runner, store) = (Arc::clone(runner), Arc::clone(store));
        let (queues, failures) = (Mutex::default(), AtomicU32::new(0));
        let subscriber = Arc::new(Subscriber { runner, store, queues, failures });
        Self { wakeups: pending().boxed(), subscriber }
    }

    pub(super) fn listen_to(&mut self, queues: Vec<QueueName>) {
        *lock(&self.subscriber.queues) = queues;
        self.renew();
    }

    /// Subscribes again, because hints may have been lost.
    pub(super) fn renew(&mut self) {
        self.wakeups = subscribe(Arc::clone(&self.subscriber));
    }

    /// Waits for the store. Cancellation safe.
    pub(super) async fn next(&mut self) -> Wakeup {
        match self.wakeups.next().await {
            Some(wakeup) => wakeup,
            None => std::future::pending().await,
        }
    }
}

fn subscribe(subscriber: Arc<Subscriber>) -> BoxStream<'static, Wakeup> {
    let wakeups = unfold(None, move |subscription: Option<Wakeups>| {
        let subscriber = Arc::clone(&subscriber);
        async move {
            match subscription {
                Some(mut wakeups) => Some((Wakeup::Hint(wakeups.next().await), Some(wakeups))),
                None => Some((Wakeup::Subscribed, Some(listen(&subscriber).await))),
            }
        }
    });
    wakeups.boxed()
}

async fn listen(Subscriber { runner, store, queues, failures }: &Subscriber) -> Wakeups {
    let queues = lock(queues).clone();
    loop {
        match runner.call("listen", store.listen(&queues, &runner.name)).await {
            Ok(wakeups) => {
                if failures.swap(0, Ordering::Relaxed) > 0 {
                    tracing::info!("the store sends wake-up hints again");
                }
                return wakeups;
            }
            Err(error) => {
                let failed = failures.fetch_add(1, Ordering::Relaxed) + 1;
                if failed == 1 {
                    tracing::warn!(%error, "no wake-up hints; jobs are found by sweeps");
                }
                runner.observers.notify(&Event::StoreFailed(&error));
                let delay = RETRY.delay(failed, 0.0).min(runner.settings.sweep);
                runner.clock().sleep(delay).await;
            }
        }
    }
}
