//! A memory backend that acts as a durable store shared by several processes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use dq_core::config::Environment;
use dq_core::{
    Backend, Capabilities, Error, ErrorKind, Layer, MemoryBackend, Result, VirtualClock,
    async_trait,
};
use dq_testkit::behaviour::{BackendUnderTest, StoreClock, StoreUnderTest};

#[derive(Clone)]
pub(crate) struct Opened {
    /// Without a defect.
    pub(crate) process: Arc<dyn Backend>,
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) opened_before: usize,
}

pub(crate) type AddDefect = fn(Opened) -> Arc<dyn Backend>;

#[derive(Debug)]
pub(crate) struct Broken {
    add_defect: AddDefect,
}

impl Broken {
    pub(crate) fn new(add_defect: AddDefect) -> Self {
        Self { add_defect }
    }
}

#[async_trait]
impl BackendUnderTest for Broken {
    async fn prepare(&self) -> Result<Box<dyn StoreUnderTest>> {
        let clock = Arc::new(VirtualClock::default());
        let (memory, opened) = (OnceLock::new(), AtomicUsize::new(0));
        Ok(Box::new(MemoryStore { memory, clock, opened, add_defect: self.add_defect }))
    }
}

#[derive(Debug)]
struct MemoryStore {
    memory: OnceLock<Arc<MemoryBackend>>,
    clock: Arc<VirtualClock>,
    opened: AtomicUsize,
    add_defect: AddDefect,
}

#[async_trait]
impl StoreUnderTest for MemoryStore {
    async fn open(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        let memory = self.memory.get_or_init(|| {
            let Environment { clock, history, .. } = environment;
            Arc::new(MemoryBackend::with_history(clock.clone(), history.clone()))
        });
        Ok((self.add_defect)(Opened {
            process: process(memory.clone()),
            clock: self.clock.clone(),
            opened_before: self.opened.fetch_add(1, Ordering::Relaxed),
        }))
    }

    fn clock(&self) -> StoreClock {
        StoreClock::Virtual(self.clock.clone())
    }
}

/// The memory store outlives the process.
pub(crate) fn process(memory: Arc<MemoryBackend>) -> Arc<dyn Backend> {
    Arc::new(Process { memory, closed: AtomicBool::new(false) })
}

#[derive(Debug)]
struct Process {
    memory: Arc<dyn Backend>,
    closed: AtomicBool,
}

#[async_trait]
impl Layer for Process {
    fn inner(&self) -> &dyn Backend {
        &*self.memory
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    async fn before(&self, call: &'static str) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the handle is closed").operation(call));
        }
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        Ok(())
    }
}
