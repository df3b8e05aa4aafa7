//! Schedules on annotated functions, with other attributes and runner settings.

use std::sync::{Arc, Mutex};

use dq_core::config::{QueueSettings, ScheduleSettings};
use dq_core::sync::lock;
use dq_core::{
    DelayHandler, DurationExt, HandlerFn, HandlerResult, Job, JobContext, JobError, JobResult,
    Middleware, Next, Outcome, Queue, QueueCode, Requirements, Result, async_trait,
};

use crate::recurring::fixture::{Program, QUEUE, Report, START, World, hourly};

/// Has the code [`QUEUE`], an earlier code, a payload version and an hourly schedule.
struct Renamed;

/// Queue, hour and schema version.
type Seen = Arc<Mutex<Vec<(String, u64, Option<String>)>>>;

impl Queue for Renamed {
    type Payload = Option<u32>;

    fn code() -> std::borrow::Cow<'static, str> {
        QUEUE.into()
    }

    const VERSION: Option<u32> = Some(2);
}

impl HandlerFn for Renamed {
    const NAME: &'static str = "renamed";
    const LOCATION: &'static str = "handlers.rs:1";
    const ALIASES: &'static [&'static str] = &["NIGHTLY"];

    fn settings() -> QueueSettings {
        QueueSettings::new()
    }

    fn schedule() -> Result<Option<ScheduleSettings>> {
        Ok(Some(hourly()))
    }

    fn requires(requirements: &mut Requirements) {
        requirements.state::<Seen>();
    }

    fn decode(_job: &Job) -> Result<Self::Payload, JobError> {
        Ok(None)
    }

    async fn call(ctx: JobContext) -> JobResult {
        let occurrence = ctx.occurrence().expect("the job of a schedule");
        let hour = occurrence.since(START).as_secs() / 3_600;
        let version = ctx.headers().get("schema-version").map(str::to_owned);
        let seen = ctx.state::<Seen>().expect("it is required");
        lock(seen).push((ctx.queue().to_string(), hour, version));
        Ok(Outcome::Done)
    }
}

async fn start_renamed(world: &World, seen: &Seen) -> Program {
    let seen = Arc::clone(seen);
    world.start_runner(|runner| runner.register::<Renamed>().state(seen)).await
}

/// Before the handler had an alias.
async fn start_code(world: &World, code: &'static str) -> Program {
    world.start_runner(|runner| runner.handler(Old(code))).await
}

struct Old(&'static str);

impl DelayHandler for Old {
    type Payload = Option<u32>;

    fn code(&self) -> impl QueueCode {
        self.0
    }

    fn schedule(&self) -> Option<ScheduleSettings> {
        Some(hourly())
    }

    async fn handle(&self, _ctx: JobContext, _payload: Option<u32>) -> HandlerResult {
        Ok(Outcome::Done)
    }
}

/// Runs no job, as during maintenance.
struct Maintenance(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl Middleware for Maintenance {
    async fn call(&self, job: JobContext, _next: Next<'_>) -> JobResult {
        lock(&self.0).push(job.queue().to_string());
        Ok(Outcome::skip("maintenance"))
    }
}

#[tokio::test]
async fn middleware_does_not_end_a_schedule() {
    let world = World::new();
    let queues = Arc::new(Mutex::default());
    let report = Report { runs: world.runs.clone(), schedule: Some(hourly()) };
    let maintenance = Maintenance(Arc::clone(&queues));
    let program = world.start_runner(|runner| runner.handler(report).middleware(maintenance)).await;
    program.run_until(3.hours()).await;
    assert_eq!(*lock(&queues), [QUEUE; 3], "it skips the jobs of the occurrences only");
    assert_eq!(program.schedule().next(1).await.unwrap(), [START + 4.hours()]);
}

/// A job without the version is read as version 1.
#[tokio::test]
async fn the_jobs_of_a_schedule_have_the_schema_version_of_their_payload() {
    let (world, seen) = (World::new(), Seen::default());
    let program = start_renamed(&world, &seen).await;
    let take = || std::mem::take(&mut *lock(&seen));
    let two = Some("2".to_owned());
    program.run_until(1.hours()).await;
    assert_eq!(take(), [(QUEUE.to_owned(), 1, two.clone())], "declared by the handler");
    assert!(program.schedule().remove().await.unwrap());

    let typed = || program.dq.recurring::<Renamed>("typed");
    assert!(typed().every(1.hours()).upsert().await.unwrap());
    assert!(!typed().every(1.hours()).upsert().await.unwrap());
    program.run_until(2.hours()).await;
    assert_eq!(take(), [(QUEUE.to_owned(), 2, two.clone())], "by the type of the queue");
    assert!(typed().run_now().await.unwrap().is_some());
    program.run_until(2.hours()).await;
    assert_eq!(take(), [(QUEUE.to_owned(), 2, two.clone())]);
    assert!(typed().remove().await.unwrap());

    let by_name = || program.dq.recurring_in(QUEUE, "by-name").every(1.hours());
    assert!(by_name().upsert().await.unwrap());
    program.run_until(3.hours()).await;
    assert_eq!(take(), [(QUEUE.to_owned(), 3, None)]);
    assert!(by_name().schema_version(2).upsert().await.unwrap());
    program.run_until(4.hours()).await;
    assert_eq!(take(), [(QUEUE.to_owned(), 4, two)]);
}

#[tokio::test]
async fn a_handler_with_a_new_code_takes_its_schedule_along() {
    let (world, seen) = (World::new(), Seen::default());
    // The old version's process: schedules with each combination of name and queue.
    let old = start_code(&world, "NIGHTLY").await;
    old.runner.run_due().await.unwrap();
    old.dq.recurring_in("NIGHTLY", "called").every(1.days()).upsert().await.unwrap();
    assert!(old.dq.recurring_in("NIGHTLY", "NIGHTLY").pause().await.unwrap());
    drop(old);

    let new = start_renamed(&world, &seen).await;
    new.run_until(2.hours()).await;
    let names = || async {
        let schedules = new.dq.schedules().await.unwrap();
        schedules.into_iter().map(|schedule| schedule.name).collect::<Vec<_>>()
    };
    assert_eq!(names().await, [QUEUE, "called"]);
    assert!(lock(&seen).is_empty(), "it is still paused");
    assert!(new.schedule().resume().await.unwrap());
    new.run_until(3.hours()).await;
    let jobs = std::mem::take(&mut *lock(&seen));
    let jobs: Vec<_> = jobs.iter().map(|(queue, hour, _)| (queue.as_str(), *hour)).collect();
    assert_eq!(jobs, [(QUEUE, 3)]);
}
