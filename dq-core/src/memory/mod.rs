//! The memory backend: the reference model. Nothing survives the process; everything else is as
//! the contract says, on a real or a virtual clock.

mod config;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use crate::backend::{
    Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed, Finding, Listeners,
    OperateReport, Operation, Page, QueueStats, Renewal, Renewed, Reschedule, Rescheduled,
    Scheduled, Settled, Settlement, Wakeups,
};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::Machine;
use crate::model::{JobRef, JobView, NewJob, QueueName, Timestamp};
use crate::sync::lock;

pub use config::MemoryConfig;

/// Jobs in the memory of this process.
pub struct MemoryBackend {
    clock: Arc<dyn Clock>,
    // A plain mutex: held for microseconds, never over an await.
    machine: Mutex<Machine>,
    listeners: Listeners,
    closed: AtomicBool,
}

impl MemoryBackend {
    /// An empty store that goes by this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            machine: Mutex::default(),
            listeners: Listeners::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Makes a call at the present time, and wakes whom it concerns.
    fn call<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce(&mut Machine, Timestamp) -> T,
    ) -> Result<T> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the memory backend has been closed")
                .operation(operation));
        }
        let (answer, earlier) = {
            // A panic in here would be a bug of the machine; the others still get an answer.
            let mut machine = lock(&self.machine);
            // Read under the lock, so that time does not run backwards from call to call.
            let answer = call(&mut machine, self.clock.now());
            (answer, machine.take_earlier())
        };
        for (queue, due) in earlier {
            self.listeners.wake(&queue, due);
        }
        Ok(answer)
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
            moves.iter().map(|wish| machine.reschedule(wish, now)).collect()
        })
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        self.call("listen", |_, _| self.listeners.listen(queues))
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.call("claim", |machine, now| machine.claim(params.wants, params.limit, now))
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
        let affected = self.call("operate", |machine, now| {
            machine.operate(operation.queue(), &operation.into(), now)
        })?;
        Ok(OperateReport { affected })
    }

    async fn check(&self) -> Vec<Finding> {
        Vec::new()
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        Ok(())
    }
}
