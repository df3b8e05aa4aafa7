//! Programs that share a store and a virtual clock, and the occurrences that they have run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::config::{Config, ScheduleSettings};
use dq_core::sync::lock;
use dq_core::{
    Backend, Clock, DelayHandler, Dq, DurationExt, HandlerResult, JobContext, Outcome, QueueCode,
    Recurring, Result, Runner, RunnerBuilder, Timestamp, VirtualClock,
};
use dq_testkit::fixture::memory;

/// Sunday, 2026-03-01 at 00:00 UTC: when each test begins.
pub(crate) const START: Timestamp = Timestamp::from_millis(1_772_323_200_000);

/// The occurrences that have run, in order, each with its payload.
pub(crate) type Runs = Arc<Mutex<Vec<(Timestamp, u32)>>>;

/// The queue of the jobs.
pub(crate) const QUEUE: &str = "REPORT";

/// The handler of the jobs.
pub(crate) struct Report {
    pub(crate) runs: Runs,
    pub(crate) schedule: Option<ScheduleSettings>,
}

impl DelayHandler for Report {
    type Payload = Option<u32>;

    fn code(&self) -> impl QueueCode {
        QUEUE
    }

    fn schedule(&self) -> Option<ScheduleSettings> {
        self.schedule.clone()
    }

    async fn handle(&self, ctx: JobContext, payload: Option<u32>) -> HandlerResult {
        let occurrence = ctx.occurrence().expect("the job of a schedule");
        lock(&self.runs).push((occurrence, payload.unwrap_or_default()));
        Ok(Outcome::Done)
    }
}

/// A store and its clock.
pub(crate) struct World {
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) runs: Runs,
}

/// A program that has started.
pub(crate) struct Program {
    pub(crate) dq: Dq,
    pub(crate) runner: Runner,
    clock: Arc<VirtualClock>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::at(START)
    }

    /// A world in which it is this time.
    pub(crate) fn at(start: Timestamp) -> Self {
        let clock = Arc::new(VirtualClock::new(start));
        let store = Arc::new(memory(clock.clone()));
        Self { clock, store, runs: Runs::default() }
    }

    /// Starts a program, which may declare a schedule called [`QUEUE`].
    pub(crate) async fn start(&self, schedule: Option<ScheduleSettings>) -> Program {
        self.start_over(self.store.clone(), schedule).await.unwrap()
    }

    /// Starts a program that reaches the store through this layer.
    pub(crate) async fn start_over(
        &self,
        store: Arc<dyn Backend>,
        schedule: Option<ScheduleSettings>,
    ) -> Result<Program> {
        let report = Report { runs: Arc::clone(&self.runs), schedule };
        self.start_runner(store, |runner| runner.handler(report)).await
    }

    /// Starts a program with this runner.
    pub(crate) async fn start_runner(
        &self,
        store: Arc<dyn Backend>,
        change: impl FnOnce(RunnerBuilder) -> RunnerBuilder,
    ) -> Result<Program> {
        let dq = Dq::builder().backend(store).clock(self.clock.clone()).connect().await?;
        let runner = change(dq.runner().without_linked_handlers()).build()?;
        Ok(Program { dq, runner, clock: self.clock.clone() })
    }

    /// Starts a program without schedules of its own and with this configuration of its queues.
    pub(crate) async fn start_configured(&self, text: &str) -> Program {
        let config = Config::from_toml(&format!("[backend]\ntype = \"memory\"\n{text}")).unwrap();
        let dq = Dq::builder().config(config).backend(self.store.clone());
        let dq = dq.clock(self.clock.clone()).connect().await.unwrap();
        let report = Report { runs: Arc::clone(&self.runs), schedule: None };
        let runner = dq.runner().without_linked_handlers().handler(report).build().unwrap();
        Program { dq, runner, clock: self.clock.clone() }
    }

    /// The times of the occurrences that have run since the last call, after [`START`].
    pub(crate) fn take_runs(&self) -> Vec<Duration> {
        let runs = std::mem::take(&mut *lock(&self.runs));
        runs.into_iter().map(|(occurrence, _)| occurrence.since(START)).collect()
    }
}

impl Program {
    /// The schedule of the test.
    pub(crate) fn schedule(&self) -> Recurring<serde_json::Value> {
        self.dq.recurring_in(QUEUE, QUEUE)
    }

    /// Runs everything until this time after [`START`], each job at its due time.
    pub(crate) async fn run_until(&self, end: Duration) {
        self.try_run_until(end).await.unwrap();
    }

    /// As [`run_until`](Self::run_until), until a call fails.
    pub(crate) async fn try_run_until(&self, end: Duration) -> Result<()> {
        self.run_to(START + end).await
    }

    /// Runs everything until this time, each job at its due time.
    pub(crate) async fn run_to(&self, end: Timestamp) -> Result<()> {
        loop {
            let report = self.runner.run_due().await?;
            match report.next_due.filter(|due| *due <= end) {
                Some(due) => self.clock.set(due.max(self.clock.now())),
                None => break,
            }
        }
        self.clock.set(end.max(self.clock.now()));
        self.runner.run_due().await.map(|_| ())
    }
}

/// A schedule each hour.
pub(crate) fn hourly() -> ScheduleSettings {
    ScheduleSettings::new().every(1.hours())
}
