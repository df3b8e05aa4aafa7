//! The memory backend: a [`Machine`] behind a mutex. Jobs do not survive the process.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde::Deserialize;

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
use crate::sync::lock;

/// A backend that keeps jobs in the memory of this process.
pub struct MemoryBackend {
    clock: Arc<dyn Clock>,
    // A blocking mutex suffices: it is held for microseconds and never across an await.
    machine: Mutex<Machine>,
    listeners: Listeners,
    closed: AtomicBool,
}

impl MemoryBackend {
    /// Creates an empty store that uses this clock and remembers no ended jobs.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with_history(clock, HistoryLimits::default())
    }

    /// Creates an empty store that uses this clock and remembers ended jobs within these limits, by
    /// default none.
    #[must_use]
    pub fn with_history(clock: Arc<dyn Clock>, history: HistoryLimits) -> Self {
        // With a history a settlement takes about three times as long.
        let history = history.or_default(HistoryLimit::OFF);
        Self {
            clock,
            machine: Mutex::new(Machine::new(history)),
            listeners: Listeners::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Runs `call` at the current time and sends the resulting wake-up hints.
    fn call<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce(&mut Machine, Timestamp) -> T,
    ) -> Result<T> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the memory backend has been closed")
                .operation(operation));
        }
        let (result, hints) = {
            let mut machine = lock(&self.machine);
            // The clock is read under the lock, so that time does not go back from call to call.
            let result = call(&mut machine, self.clock.now());
            (result, machine.take_hints())
        };
        for (queue, due) in hints {
            self.listeners.wake(&queue, due);
        }
        Ok(result)
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
        self.call("now", |_, now| now)
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.call("schedule", |machine, now| {
            jobs.into_iter().map(|job| machine.schedule(job, now)).collect()
        })
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.call("cancel", |machine, now| {
            jobs.iter().map(|job| machine.cancel(job, now)).collect()
        })
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.call("reschedule", |machine, now| {
            moves.iter().map(|reschedule| machine.reschedule(reschedule, now)).collect()
        })
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        self.call("listen", |_, _| self.listeners.listen(queues))
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.call("claim", |machine, now| machine.claim(params, now))
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.call("settle", |machine, now| {
            settlements.iter().map(|settlement| machine.settle(settlement, now)).collect()
        })
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.call("renew", |machine, now| {
            renewals.iter().map(|renewal| machine.renew(renewal, now)).collect()
        })
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.call("stats", |machine, now| machine.stats(queues, now))
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.call("browse", |machine, now| machine.browse(params, now))
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.call("get", |machine, now| machine.get(job, now))
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.call("operate", |machine, now| {
            machine.operate(operation.queue(), &operation.into(), now)
        })
    }

    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        self.call("forecast", |machine, now| {
            machine.expire_leases(now);
            machine.forecast(queue, edges)
        })
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        self.call("announce", |machine, now| machine.announce(announcement, now))
    }

    async fn runners(&self) -> Result<Vec<Announced>> {
        self.call("runners", |machine, now| machine.runners(now))
    }

    async fn check(&self) -> Vec<Finding> {
        Vec::new()
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        Ok(())
    }
}

/// Settings of the memory backend (`type = "memory"`, `memory:`); there are none.
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
    schemes: ["memory"],
    from_url: MemoryConfig::from_url,
}
