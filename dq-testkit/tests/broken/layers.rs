//! The macro that defines the layers, and layers with more than a change of one call.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{
    Backend, Capabilities, ClaimParams, Claimed, Clock, Due, Layer, NewJob, QueueName, QueueStats,
    Result, Scheduled, Timestamp, VirtualClock, async_trait,
};
use dq_testkit::fixture::memory;
use futures_util::future::BoxFuture;

use super::subject::{Opened, process};

/// Defines a layer over a correct backend, with the methods that it overrides. It may have a state.
macro_rules! layer {
    ($name:ident, { $($method:tt)* }) => {
        layer!($name [], { $($method)* });
    };
    ($name:ident [$($field:ident: $state:ty),*], { $($method:tt)* }) => {
        #[derive(Debug)]
        pub(crate) struct $name {
            inner: Arc<dyn Backend>,
            $($field: $state,)*
        }

        impl $name {
            pub(crate) fn over(opened: Opened) -> Arc<dyn Backend> {
                Arc::new(Self { inner: opened.process, $($field: Default::default(),)* })
            }
        }

        #[async_trait]
        impl Layer for $name {
            fn inner(&self) -> &dyn Backend {
                &*self.inner
            }

            $($method)*
        }
    };
}

/// Defines a layer that changes each verdict before it is settled.
macro_rules! changes_verdicts {
    ($name:ident, $change:expr) => {
        layer!($name, {
            async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
                let change: fn(&mut Verdict) = $change;
                let mut settlements = settlements.to_vec();
                settlements.iter_mut().for_each(|settlement| change(&mut settlement.verdict));
                self.inner.settle(&settlements).await
            }
        });
    };
}

layer!(NoCapabilities, {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let mut stats = self.inner.stats(queues).await?;
        stats.iter_mut().for_each(|queue| queue.totals = None);
        Ok(stats)
    }
});

/// The clock of a store that fires early.
#[derive(Debug)]
struct FastClock(Arc<VirtualClock>);

const AHEAD: Duration = Duration::from_millis(5);

impl Clock for FastClock {
    fn now(&self) -> Timestamp {
        self.0.now() + AHEAD
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()> {
        self.0.sleep_until(until - AHEAD)
    }
}

/// Its store uses [`FastClock`], but it reports the true time.
#[derive(Debug)]
pub(crate) struct FiresEarly {
    inner: Arc<dyn Backend>,
    clock: Arc<VirtualClock>,
}

impl FiresEarly {
    pub(crate) fn over(opened: Opened) -> Arc<dyn Backend> {
        let fast_clock = Arc::new(FastClock(opened.clock.clone()));
        let inner = process(Arc::new(memory(fast_clock)));
        Arc::new(Self { inner, clock: opened.clock })
    }
}

#[async_trait]
impl Layer for FiresEarly {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.clock.now())
    }

    async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        for job in &mut jobs {
            job.due = Due::At(job.due.resolve(self.clock.now()));
        }
        self.inner.schedule(jobs).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let mut claimed = self.inner.claim(params).await?;
        claimed.now = self.clock.now();
        Ok(claimed)
    }
}
