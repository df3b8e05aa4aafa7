//! A crash of the process at a chosen step, and an import source that crashes.

use std::sync::{Arc, Mutex};

use dq_core::import::{ImportSource, JournalEntry, SourceEntry, TakeRequest};
use dq_core::sync::lock;
use dq_core::{Error, ErrorKind, JobId, Result, async_trait};

/// Whether the step at which the process crashes has taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The crash comes before the step.
    Before,
    /// The step has taken effect; its answer is lost.
    After,
}

/// Counts steps and fails at one of them, as if the process had crashed there. Clones count
/// together.
#[derive(Debug, Clone, Default)]
pub struct CrashPoint(Arc<Mutex<Steps>>);

#[derive(Debug, Default)]
struct Steps {
    taken: usize,
    crash: Option<(usize, Crash)>,
}

impl CrashPoint {
    /// Counts from zero again; the step with this number, counted from 1, crashes.
    pub fn set(&self, crash: Option<(usize, Crash)>) {
        *lock(&self.0) = Steps { taken: 0, crash };
    }

    /// One step.
    ///
    /// # Errors
    /// Those of the call, and `Unavailable` if the process crashes here.
    pub async fn step<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let crash = self.next();
        if crash == Some(Crash::Before) {
            return Err(crashed());
        }
        let answer = call.await;
        if crash == Some(Crash::After) { Err(crashed()) } else { answer }
    }

    fn next(&self) -> Option<Crash> {
        let mut steps = lock(&self.0);
        steps.taken += 1;
        steps.crash.and_then(|(number, crash)| (number == steps.taken).then_some(crash))
    }
}

fn crashed() -> Error {
    Error::new(ErrorKind::Unavailable, "the process crashed at this step")
        .remedy("repeat the call in a new process")
}

/// An import source whose calls are steps of a [`CrashPoint`].
#[derive(Debug)]
pub struct CrashingSource<S> {
    source: S,
    point: CrashPoint,
}

impl<S: ImportSource> CrashingSource<S> {
    /// The source, crashing at this point.
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

    async fn list(&self, part: usize, skip: u64, limit: usize) -> Result<Vec<SourceEntry>> {
        self.point.step(self.source.list(part, skip, limit)).await
    }

    async fn take(&self, part: usize, requests: &[TakeRequest]) -> Result<Vec<bool>> {
        self.point.step(self.source.take(part, requests)).await
    }

    async fn journal_entries(&self, limit: usize) -> Result<Vec<JournalEntry>> {
        self.point.step(self.source.journal_entries(limit)).await
    }

    async fn mark_stored(&self, ids: &[JobId]) -> Result<Vec<bool>> {
        self.point.step(self.source.mark_stored(ids)).await
    }

    async fn remove(&self, ids: &[JobId]) -> Result<()> {
        self.point.step(self.source.remove(ids)).await
    }
}
