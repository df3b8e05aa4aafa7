//! The memory backend: a [`Machine`] behind a mutex. Jobs do not survive the process.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::task::yield_now;

use crate::backend::{
    Announced, Announcement, Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed,
    Finding, Listeners, OperateReport, Operation, Page, QueueStats, Renewal, Renewed, Reschedule,
    Rescheduled, Scheduled, Settled, Settlement, Wakeups,
};
use crate::clock::Clock;
use crate::config::{BackendConfig, ConnectUrl, Environment};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::Machine;
use crate::model::{HistoryLimit, HistoryLimits, JobRef, JobView, NewJob, QueueName, Timestamp};

/// A call with many jobs releases the mutex after each batch, so others wait about a millisecond at
/// most. `claim` and `operate` have their own limits.
const BATCH: usize = 500;

/// A backend that keeps jobs in this process's memory.
pub struct MemoryBackend {
    clock: Arc<dyn Clock>,
    // tokio's mutex is fair, so another caller gets in between two batches. It is never held across
    // an await.
    machine: Mutex<Machine>,
    listeners: Listeners,
    closed: AtomicBool,
}

impl MemoryBackend {
    /// Creates an empty store with this clock and without a history.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with_history(clock, HistoryLimits::default())
    }

    /// Creates an empty store with this clock and history limits; the default limit is none.
    #[must_use]
    pub fn with_history(clock: Arc<dyn Clock>, history: HistoryLimits) -> Self {
        // Off by default: with a history, a settlement takes about three times as long.
        let history = history.or_default(HistoryLimit::OFF);
        Self {
            clock,
            machine: Mutex::new(Machine::new(history)),
            listeners: Listeners::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Runs `call` at the current time and sends its wake-up hints.
    async fn call<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce(&mut Machine, Timestamp) -> T,
    ) -> Result<T> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the memory backend has been closed")
                .operation(operation));
        }
        let (result, hints) = {
            let mut machine = self.machine.lock().await;
            // Read the clock under the lock, so that time does not go back between calls.
            let result = call(&mut machine, self.clock.now());
            (result, machine.take_hints())
        };
        hints.iter().for_each(|hint| hint.send(&self.listeners));
        Ok(result)
    }

    /// Yields after a long call or a step, so that a caller in a loop does not block the thread's
    /// other tasks.
    async fn long_call<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce(&mut Machine, Timestamp) -> T,
    ) -> Result<T> {
        let result = self.call(operation, call).await;
        yield_now().await;
        result
    }

    async fn call_for_each<I, T>(
        &self,
        operation: &'static str,
        items: impl ExactSizeIterator<Item = I>,
        mut call: impl FnMut(&mut Machine, I, Timestamp) -> T,
    ) -> Result<Vec<T>> {
        let mut results = Vec::with_capacity(items.len());
        let mut items = items.fuse();
        while items.len() > BATCH {
            let step = self.long_call(operation, |machine, now| {
                results.extend(items.by_ref().take(BATCH).map(|item| call(machine, item, now)));
            });
            step.await?;
        }
        let last = self.call(operation, |machine, now| {
            results.extend(items.map(|item| call(machine, item, now)));
        });
        last.await?;
        Ok(results)
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: false, shared: false, ..Capabilities::all() }
    }

    async fn now(&self) -> Result<Timestamp> {
        self.call("now", |_, now| now).await
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let schedule = |machine: &mut Machine, job, now| machine.schedule(job, (), now);
        self.call_for_each("schedule", jobs.into_iter(), schedule).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.call_for_each("cancel", jobs.iter(), Machine::cancel).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.call_for_each("reschedule", moves.iter(), Machine::reschedule).await
    }

    async fn listen(&self, queues: &[QueueName], worker: &str) -> Result<Wakeups> {
        self.call("listen", |_, _| self.listeners.listen(queues, worker)).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.call("claim", |machine, now| machine.claim(params, now)).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.call_for_each("settle", settlements.iter(), Machine::settle).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.call_for_each("renew", renewals.iter(), Machine::renew).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.call("stats", |machine, now| machine.stats(queues, now)).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.long_call("browse", |machine, now| machine.browse(params, now)).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.call("get", |machine, now| machine.get(job, now)).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.long_call("operate", |machine, now| machine.operate(operation, now)).await
    }

    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        self.call("forecast", |machine, now| {
            machine.expire_leases(now);
            machine.forecast(queue, edges)
        })
        .await
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        self.call("announce", |machine, now| machine.announce(announcement, now)).await
    }

    async fn runners(&self) -> Result<Vec<Announced>> {
        self.call("runners", |machine, now| machine.runners(now)).await
    }

    async fn check(&self) -> Vec<Finding> {
        Vec::new()
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        Ok(())
    }
}

/// The memory backend's settings (`type = "memory"`, `memory:`); there are none.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryConfig {}

impl MemoryConfig {
    fn from_url(url: &ConnectUrl) -> Result<Box<dyn BackendConfig>> {
        url.expect_options(&[])?;
        Ok(Box::new(Self {}))
    }
}

#[typetag::deserialize(name = "memory")]
#[async_trait]
impl BackendConfig for MemoryConfig {
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        let Environment { clock, history, .. } = environment;
        Ok(Arc::new(MemoryBackend::with_history(Arc::clone(clock), history.clone())))
    }
}

crate::register_backend! {
    name: "memory",
    settings: MemoryConfig,
    schemes: ["memory"],
    from_url: MemoryConfig::from_url,
}
