//! Crashes: a counter of steps fails one of them, as if the process had crashed there.

use std::sync::{Arc, Mutex};

use dq_core::import::{ImportJournal, ImportSource, JournalEntry, SourceEntry, TakeRequest};
use dq_core::sync::lock;
use dq_core::{Error, ErrorKind, JobId, Result, async_trait};

/// When the process crashes, relative to the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// Before the step takes effect.
    Before,
    /// After the step took effect; its answer is lost.
    After,
}

/// A step counter that fails one step with `Unavailable`, like a process that crashes there.
///
/// You choose which calls are steps. Clones share the counter.
///
/// Only the chosen step fails. Later steps stand for calls by the next process. If your code
/// repeats a failed call, or has others in flight, wrap it so that all later calls fail, too.
#[derive(Debug, Clone, Default)]
pub struct CrashPoint(Arc<Mutex<Steps>>);

#[derive(Debug, Default)]
struct Steps {
    count: usize,
    /// The step number, from 1.
    crash: Option<(usize, Crash)>,
}

impl CrashPoint {
    /// Restarts the count and chooses the step that crashes, from 1; `None` for no crash.
    pub fn set(&self, crash: Option<(usize, Crash)>) {
        *lock(&self.0) = Steps { count: 0, crash };
    }

    /// Makes a call as the next step.
    ///
    /// # Errors
    /// `Unavailable` if the process crashes here, or the call's own error.
    pub async fn step<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let crash = self.count_step();
        if crash == Some(Crash::Before) {
            return Err(crashed());
        }
        let answer = call.await;
        if crash == Some(Crash::After) { Err(crashed()) } else { answer }
    }

    fn count_step(&self) -> Option<Crash> {
        let mut steps = lock(&self.0);
        steps.count += 1;
        steps.crash.and_then(|(number, crash)| (number == steps.count).then_some(crash))
    }
}

fn crashed() -> Error {
    Error::new(ErrorKind::Unavailable, "the process crashed at this step")
        .remedy("repeat the call in a new process")
}

/// An import source that makes each call as a step of a [`CrashPoint`].
#[derive(Debug)]
pub struct CrashingSource<S> {
    source: S,
    point: CrashPoint,
}

impl<S: ImportSource> CrashingSource<S> {
    /// Wraps a source.
    pub fn new(source: S, point: &CrashPoint) -> Self {
        Self { source, point: point.clone() }
    }
}

#[async_trait]
impl<S: ImportSource> ImportSource for CrashingSource<S> {
    fn name(&self) -> String {
        self.source.name()
    }

    fn parts(&self) -> usize {
        self.source.parts()
    }

    fn check_target(&self, target: &str) -> Result<()> {
        self.source.check_target(target)
    }

    async fn list(&self, part: usize, skip: u64, limit: usize) -> Result<Vec<SourceEntry>> {
        self.point.step(self.source.list(part, skip, limit)).await
    }

    async fn take(&self, part: usize, requests: &[TakeRequest]) -> Result<Vec<bool>> {
        self.point.step(self.source.take(part, requests)).await
    }

    fn journal(&self) -> &dyn ImportJournal {
        self
    }
}

#[async_trait]
impl<S: ImportSource> ImportJournal for CrashingSource<S> {
    async fn entries(&self, limit: usize) -> Result<Vec<JournalEntry>> {
        self.point.step(self.source.journal().entries(limit)).await
    }

    async fn mark_stored(&self, ids: &[JobId]) -> Result<Vec<bool>> {
        self.point.step(self.source.journal().mark_stored(ids)).await
    }

    async fn remove(&self, ids: &[JobId]) -> Result<()> {
        self.point.step(self.source.journal().remove(ids)).await
    }
}
