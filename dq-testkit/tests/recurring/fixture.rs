//! Programs that share a store and a virtual clock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::config::{Config, ScheduleSettings};
use dq_core::sync::lock;
use dq_core::{
    Backend, Clock, DelayHandler, Dq, DqBuilder, DurationExt, HandlerResult, JobContext, Outcome,
    QueueCode, RecurringSchedule, Result, Runner, RunnerBuilder, Timestamp, VirtualClock,
};
use dq_testkit::faults::CrashPoint;
use dq_testkit::fixture::memory;

use crate::common::open::OpenStore;
use crate::common::stepped::Stepped;

/// Sunday, 2026-03-01 at 00:00 UTC.
pub(crate) const START: Timestamp = Timestamp::from_millis(1_772_323_200_000);

pub(crate) type Runs = Arc<Mutex<Vec<(Timestamp, u32)>>>;

/// The queue of the handler [`Report`], and the name of its schedule.
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
    /// The store that was in use before.
    drained: Option<Arc<dyn Backend>>,
    pub(crate) runs: Runs,
}

pub(crate) struct Program {
    pub(crate) dq: Dq,
    pub(crate) runner: Runner,
    clock: Arc<VirtualClock>,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(VirtualClock::new(START));
        let store = Arc::new(memory(clock.clone()));
        Self { clock, store, drained: None, runs: Runs::default() }
    }

    /// Moves to a new store. Programs that [`start`](Self::start) later drain the old one, and switch
    /// to others before each call to it.
    pub(crate) fn change_store(&mut self) {
        let new = Arc::new(memory(self.clock.clone()));
        let old = std::mem::replace(&mut self.store, new);
        self.drained = Some(Stepped::over(old, &CrashPoint::default(), false));
    }

    /// Starts a program that may declare a schedule named [`QUEUE`].
    pub(crate) async fn start(&self, declared: Option<ScheduleSettings>) -> Program {
        self.start_over(self.store.clone(), declared).await.unwrap()
    }

    /// Starts a program that declares nothing, and stores an hourly schedule by a call.
    pub(crate) async fn start_hourly(&self) -> Program {
        let program = self.start(None).await;
        assert!(program.schedule().every(1.hours()).upsert().await.unwrap());
        program
    }

    /// Starts a program that reaches the store through this layer.
    pub(crate) async fn start_over(
        &self,
        store: Arc<dyn Backend>,
        declared: Option<ScheduleSettings>,
    ) -> Result<Program> {
        let mut dq = Dq::builder().backend(store).clock(self.clock.clone());
        if let Some(drained) = &self.drained {
            dq = dq.drain(OpenStore::boxed(drained.clone()));
        }
        self.program(dq.connect().await?, declared)
    }

    pub(crate) async fn start_runner(
        &self,
        change: impl FnOnce(RunnerBuilder) -> RunnerBuilder,
    ) -> Program {
        let dq = self.connect(Dq::builder()).await;
        self.program_with(dq, change).unwrap()
    }

    pub(crate) fn program(&self, dq: Dq, declared: Option<ScheduleSettings>) -> Result<Program> {
        let report = Report { runs: Arc::clone(&self.runs), schedule: declared };
        self.program_with(dq, |runner| runner.handler(report))
    }

    fn program_with(
        &self,
        dq: Dq,
        change: impl FnOnce(RunnerBuilder) -> RunnerBuilder,
    ) -> Result<Program> {
        let runner = change(dq.runner().without_linked_handlers()).build()?;
        Ok(Program { dq, runner, clock: self.clock.clone() })
    }

    pub(crate) async fn connect(&self, builder: DqBuilder) -> Dq {
        builder.backend(self.store.clone()).clock(self.clock.clone()).connect().await.unwrap()
    }

    /// Connects a client with this text in its `dq.toml`.
    pub(crate) async fn connect_configured(&self, text: &str) -> Dq {
        let config = Config::from_toml(&format!("[backend]\ntype = \"memory\"\n{text}")).unwrap();
        self.connect(Dq::builder().config(config)).await
    }

    /// The occurrences that have run since the last call, counted from [`START`].
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

pub(crate) fn hours<const N: usize>(hours: [u64; N]) -> [Duration; N] {
    hours.map(|hour| hour.hours())
}
