//! Programs that share a store and a virtual clock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::config::{Config, ScheduleSettings};
use dq_core::sync::lock;
use dq_core::{
    Backend, Clock, DelayHandler, Dq, DurationExt, HandlerResult, JobContext, Outcome, QueueCode,
    RecurringSchedule, Result, Runner, RunnerBuilder, Timestamp, VirtualClock,
};
use dq_testkit::fixture::memory;

/// Sunday, 2026-03-01 at 00:00 UTC.
pub(crate) const START: Timestamp = Timestamp::from_millis(1_772_323_200_000);

/// Each with its payload.
pub(crate) type Runs = Arc<Mutex<Vec<(Timestamp, u32)>>>;

pub(crate) const QUEUE: &str = "REPORT";

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

pub(crate) struct World {
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) runs: Runs,
}

pub(crate) struct Program {
    pub(crate) dq: Dq,
    pub(crate) runner: Runner,
    clock: Arc<VirtualClock>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::at(START)
    }

    pub(crate) fn at(start: Timestamp) -> Self {
        let clock = Arc::new(VirtualClock::new(start));
        let store = Arc::new(memory(clock.clone()));
        Self { clock, store, runs: Runs::default() }
    }

    /// The program may declare a schedule named [`QUEUE`].
    pub(crate) async fn start(&self, schedule: Option<ScheduleSettings>) -> Program {
        self.start_over(self.store.clone(), schedule).await.unwrap()
    }

    /// The program reaches the store through this layer.
    pub(crate) async fn start_over(
        &self,
        store: Arc<dyn Backend>,
        schedule: Option<ScheduleSettings>,
    ) -> Result<Program> {
        let report = Report { runs: Arc::clone(&self.runs), schedule };
        self.start_runner(store, |runner| runner.handler(report)).await
    }

    pub(crate) async fn start_runner(
        &self,
        store: Arc<dyn Backend>,
        change: impl FnOnce(RunnerBuilder) -> RunnerBuilder,
    ) -> Result<Program> {
        let dq = Dq::builder().backend(store).clock(self.clock.clone()).connect().await?;
        let runner = change(dq.runner().without_linked_handlers()).build()?;
        Ok(Program { dq, runner, clock: self.clock.clone() })
    }

    /// The program has no schedules.
    pub(crate) async fn start_configured(&self, text: &str) -> Program {
        let config = Config::from_toml(&format!("[backend]\ntype = \"memory\"\n{text}")).unwrap();
        let dq = Dq::builder().config(config).backend(self.store.clone());
        let dq = dq.clock(self.clock.clone()).connect().await.unwrap();
        let report = Report { runs: Arc::clone(&self.runs), schedule: None };
        let runner = dq.runner().without_linked_handlers().handler(report).build().unwrap();
        Program { dq, runner, clock: self.clock.clone() }
    }

    /// The occurrences since the last call, as offsets from [`START`].
    pub(crate) fn take_runs(&self) -> Vec<Duration> {
        let runs = std::mem::take(&mut *lock(&self.runs));
        runs.into_iter().map(|(occurrence, _)| occurrence.since(START)).collect()
    }
}

impl Program {
    pub(crate) fn schedule(&self) -> RecurringSchedule<serde_json::Value> {
        self.dq.recurring_in(QUEUE, QUEUE)
    }

    /// Runs each job at its due time. `end` counts from [`START`].
    pub(crate) async fn run_until(&self, end: Duration) {
        self.try_run_until(end).await.unwrap();
    }

    pub(crate) async fn try_run_until(&self, end: Duration) -> Result<()> {
        self.run_to(START + end).await
    }

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

pub(crate) fn hourly() -> ScheduleSettings {
    ScheduleSettings::new().every(1.hours())
}
