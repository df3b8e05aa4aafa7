//! A subject made of memory that plays a durable store shared by several processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dq_core::{
    Backend, Capabilities, Clock, Error, ErrorKind, MemoryBackend, Result, VirtualClock,
    async_trait,
};
use dq_testkit::behaviour::{Store, Subject, Time};
use dq_testkit::faults::{Layer, Layered};

/// A handle that is being opened.
pub(crate) struct Opened {
    /// The handle, as it should be.
    pub(crate) process: Arc<dyn Backend>,
    /// The store's clock.
    pub(crate) clock: Arc<VirtualClock>,
    /// How many handles were opened before.
    pub(crate) before: usize,
}

/// What breaks a handle that is being opened.
pub(crate) type Make = fn(Opened) -> Arc<dyn Backend>;

/// A subject whose handles are broken by a function.
#[derive(Debug)]
pub(crate) struct Broken {
    make: Make,
}

impl Broken {
    pub(crate) fn new(make: Make) -> Self {
        Self { make }
    }
}

#[async_trait]
impl Subject for Broken {
    async fn prepare(&self) -> Result<Box<dyn Store>> {
        let clock = Arc::new(VirtualClock::default());
        let shared_clock: Arc<dyn Clock> = clock.clone();
        let memory = Arc::new(MemoryBackend::new(shared_clock));
        let opened = AtomicUsize::new(0);
        Ok(Box::new(MemoryStore { memory, clock, opened, make: self.make }))
    }
}

#[derive(Debug)]
struct MemoryStore {
    memory: Arc<MemoryBackend>,
    clock: Arc<VirtualClock>,
    opened: AtomicUsize,
    make: Make,
}

#[async_trait]
impl Store for MemoryStore {
    async fn open(&self) -> Result<Arc<dyn Backend>> {
        Ok((self.make)(Opened {
            process: process(self.memory.clone()),
            clock: self.clock.clone(),
            before: self.opened.fetch_add(1, Ordering::Relaxed),
        }))
    }

    fn time(&self) -> Time {
        Time::Virtual(self.clock.clone())
    }
}

/// One process's handle on memory that outlives it.
pub(crate) fn process(memory: Arc<MemoryBackend>) -> Arc<dyn Backend> {
    Arc::new(Layered(Process { memory, closed: AtomicBool::new(false) }))
}

#[derive(Debug)]
struct Process {
    memory: Arc<dyn Backend>,
    closed: AtomicBool,
}

#[async_trait]
impl Layer for Process {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.memory
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    async fn before(&self, call: &'static str) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the handle was closed").operation(call));
        }
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        Ok(())
    }
}
