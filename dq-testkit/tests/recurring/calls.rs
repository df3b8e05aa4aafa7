//! Calls on one schedule: upsert, pause, resume, skip, run now and remove.

use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{
    CatchUp, DurationExt, JobContext, JobResult, Limits, Middleware, Next, Outcome, Overlap,
    Scheduled, async_trait,
};

use crate::recurring::fixture::{QUEUE, Report, START, World, hourly, hours};

#[tokio::test]
async fn a_schedule_runs_at_its_times_with_its_payload() {
    let world = World::new();
    let program = world.start(None).await;
    let upsert = |payload: u32| {
        program.schedule().cron("30 2 * * *", "UTC").payload(payload.into()).upsert()
    };
    assert!(upsert(1).await.unwrap());
    assert!(!upsert(1).await.unwrap(), "the store has it already");
    program.run_until(2.days()).await;
    assert!(upsert(2).await.unwrap());
    program.run_until(3.days()).await;

    let runs = std::mem::take(&mut *lock(&world.runs));
    let on_day = |day: u64| START + day.days() + 150.minutes();
    assert_eq!(runs, [(on_day(0), 1), (on_day(1), 1), (on_day(2), 2)]);
}

#[tokio::test]
async fn calls_on_an_unknown_schedule_find_nothing() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = || program.schedule();
    assert!(!schedule().pause().await.unwrap());
    assert!(!schedule().skip_next().await.unwrap());
    assert!(!schedule().remove().await.unwrap());
    assert!(schedule().get().await.unwrap().is_none());
    assert!(schedule().run_now().await.unwrap().is_none());
}

#[tokio::test]
async fn a_paused_schedule_runs_nothing_and_does_not_catch_up() {
    let world = World::new();
    let program = world.start_hourly().await;
    let schedule = || program.schedule();
    assert!(schedule().pause().await.unwrap());
    assert!(!schedule().pause().await.unwrap(), "it is paused already");
    assert!(schedule().get().await.unwrap().unwrap().paused);
    let changed = schedule().every(1.hours()).jitter(1.seconds()).upsert().await;
    assert!(changed.unwrap(), "a changed specification leaves it paused");
    program.run_until(5.hours() + 1.minutes()).await;
    assert!(world.take_runs().is_empty());

    assert!(schedule().resume().await.unwrap());
    assert!(!schedule().resume().await.unwrap(), "it was resumed already");
    program.run_until(6.hours() + 1.minutes()).await;
    assert_eq!(world.take_runs(), hours([6]), "occurrences of the pause do not run later");
}

#[tokio::test]
async fn occurrences_of_a_pause_without_runners_do_not_run_later() {
    let world = World::new();
    let program = world.start_hourly().await;
    program.run_until(1.hours()).await;
    assert!(program.schedule().pause().await.unwrap());
    // No runner runs until the schedule is resumed.
    world.clock.set(START + 5.hours() + 30.minutes());
    assert!(program.schedule().resume().await.unwrap());
    program.run_until(6.hours()).await;
    assert_eq!(world.take_runs(), hours([1, 6]));
}

#[tokio::test]
async fn skipped_occurrences_stay_left_out_after_a_pause_and_an_upsert() {
    let world = World::new();
    let program = world.start_hourly().await;
    let schedule = || program.schedule();
    for _ in 0..2 {
        assert!(schedule().skip_next().await.unwrap());
    }
    assert!(schedule().pause().await.unwrap() && schedule().resume().await.unwrap());
    let upserted = schedule().every(1.hours()).upsert().await;
    assert!(!upserted.unwrap(), "the store has it already");
    program.run_until(4.hours()).await;
    assert_eq!(world.take_runs(), hours([3, 4]));
}

#[tokio::test]
async fn other_times_begin_at_once_although_the_next_one_was_skipped() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = || program.schedule();
    assert!(schedule().every(7.days()).upsert().await.unwrap());
    assert!(schedule().skip_next().await.unwrap());
    assert!(schedule().every(7.days()).catch_up(CatchUp::None).upsert().await.unwrap());
    assert!(schedule().every(1.hours()).upsert().await.unwrap());
    program.run_until(2.hours()).await;
    assert_eq!(world.take_runs(), hours([1, 2]));
}

#[tokio::test]
async fn run_now_respects_overlap() {
    let world = World::new();
    let program = world.start_hourly().await;
    let schedule = || program.schedule();
    assert!(matches!(schedule().run_now().await.unwrap(), Some(Scheduled::Created(_))));
    assert!(matches!(schedule().run_now().await.unwrap(), Some(Scheduled::Kept(_))));
    program.run_until(1.hours()).await;
    assert_eq!(world.take_runs(), hours([0, 1]));

    assert!(schedule().every(1.hours()).overlap(Overlap::Allow).upsert().await.unwrap());
    for _ in 0..2 {
        assert!(matches!(schedule().run_now().await.unwrap(), Some(Scheduled::Created(_))));
    }
}

#[tokio::test]
async fn the_horizon_of_the_client_does_not_end_a_schedule() {
    let world = World::new();
    let mut limits = Limits::default();
    limits.horizon = 1.days();
    let dq = world.connect(dq_core::Dq::builder().limits(limits)).await;
    assert!(dq.recurring_in(QUEUE, QUEUE).cron("@weekly", "UTC").upsert().await.unwrap());
    world.program(dq, None).unwrap().run_until(14.days()).await;
    assert_eq!(world.take_runs(), [7.days(), 14.days()]);
}

/// Skips each job and keeps the name of its queue.
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
