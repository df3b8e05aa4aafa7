//! Schedules that programs declare: successive versions, and orphans.

use dq_core::config::ScheduleSettings;
use dq_core::{DurationExt, ErrorKind};

use crate::recurring::fixture::{Program, QUEUE, START, World, hourly, hours};

async fn generation(program: &Program) -> u64 {
    program.schedule().get().await.unwrap().unwrap().generation.unwrap()
}

fn daily(hour: u32) -> ScheduleSettings {
    ScheduleSettings::new().cron(format!("0 {hour} * * *"), "UTC")
}

#[tokio::test]
async fn the_version_that_has_started_last_decides() {
    let world = World::new();
    let old = world.start(Some(daily(3))).await;
    old.run_until(30.hours()).await;
    assert_eq!(world.take_runs(), hours([3, 27]));
    assert_eq!(generation(&old).await, 1);

    // A rolling deployment at 06:00 on the second day: both versions run for a while.
    let new = world.start(Some(daily(5))).await;
    new.run_until(31.hours()).await;
    assert!(world.take_runs().is_empty(), "05:00 of that day was before the deployment");
    assert_eq!(generation(&new).await, 2);
    old.run_until(40.hours()).await;
    assert_eq!(generation(&new).await, 2, "the old version does not change it back");
    let second = world.start(Some(daily(5))).await;
    second.run_until(54.hours()).await;
    assert_eq!(world.take_runs(), [53.hours()]);
    assert_eq!(generation(&new).await, 2);

    // A rollback at 04:00 on the fourth day.
    new.run_until(76.hours()).await;
    let rolled_back = world.start(Some(daily(3))).await;
    rolled_back.run_until(100.hours()).await;
    assert_eq!(generation(&rolled_back).await, 3);
    assert_eq!(
        world.take_runs(),
        [99.hours()],
        "neither 03:00 of before nor 05:00 of the fourth day"
    );
}

#[tokio::test]
async fn a_new_version_catches_up_on_what_the_old_one_has_missed() {
    let world = World::new();
    let old = world.start(Some(hourly())).await;
    old.run_until(1.hours()).await;
    drop(old);
    world.clock.set(START + 5.hours() + 30.minutes());
    // The jitter makes another specification, and so a new generation.
    let changed = hourly().jitter(1.millis()).catch_up("all:2".parse().unwrap());
    let new = world.start(Some(changed)).await;
    new.run_until(6.hours() + 1.minutes()).await;
    assert_eq!(world.take_runs(), hours([1, 4, 5, 6]));
}

#[tokio::test]
async fn a_pause_outlives_a_deployment_and_a_removal_lasts_until_one() {
    let world = World::new();
    let old = world.start(Some(hourly())).await;
    old.run_until(1.hours()).await;
    assert!(old.schedule().pause().await.unwrap());
    let new = world.start(Some(hourly().jitter(1.seconds()))).await;
    new.run_until(2.hours() + 1.minutes()).await;
    assert_eq!(world.take_runs(), [1.hours()]);
    let view = new.schedule().get().await.unwrap().unwrap();
    assert!(view.paused && view.generation == Some(2), "{view:?}");

    assert!(new.schedule().remove().await.unwrap());
    new.run_until(30.hours()).await;
    assert!(new.schedule().get().await.unwrap().is_none(), "it is declared at the start only");
    let restarted = world.start(Some(hourly())).await;
    restarted.run_until(31.hours()).await;
    assert_eq!(world.take_runs(), [31.hours()]);
}

#[tokio::test]
async fn a_schedule_that_no_process_declares_stops_after_a_day() {
    let world = World::new();
    let old = world.start(Some(hourly())).await;
    old.run_until(30.hours()).await;
    let view = || async { old.schedule().get().await.unwrap().unwrap() };
    assert!(!view().await.orphaned, "the process says so each hour");
    assert_eq!(world.take_runs().len(), 30);

    let new = world.start(None).await;
    new.run_until(33.hours()).await;
    assert!(!view().await.orphaned, "a deployment may take that long");
    new.run_until(34.hours()).await;
    assert!(view().await.orphaned);
    assert!(new.dq.schedules().await.unwrap()[0].orphaned);
    assert_eq!(world.take_runs().len(), 4, "it still runs");
    new.run_until(80.hours()).await;
    let last = world.take_runs().pop().unwrap();
    assert_eq!(last, 54.hours(), "a day after it was last declared");

    // After the rollback it catches up, as after an outage.
    let rolled_back = world.start(Some(hourly())).await;
    rolled_back.run_until(81.hours()).await;
    assert_eq!(world.take_runs(), hours([80, 81]));
    assert!(!view().await.orphaned);
    assert_eq!(generation(&rolled_back).await, 1);
}

#[tokio::test]
async fn a_declared_schedule_that_a_call_takes_over_is_never_an_orphan() {
    let world = World::new();
    let old = world.start(Some(hourly())).await;
    old.run_until(1.hours()).await;
    drop(old);
    world.take_runs();
    let new = world.start(None).await;
    let upsert = || new.schedule().every(1.hours()).upsert();
    assert!(upsert().await.unwrap(), "it was declared before");
    assert!(!upsert().await.unwrap());
    new.run_until(40.hours()).await;
    assert_eq!(world.take_runs().len(), 39);
    let view = new.schedule().get().await.unwrap().unwrap();
    assert!(view.generation.is_none() && !view.orphaned, "{view:?}");
}

/// The whole schedule lies in the past when the program starts.
fn ended() -> ScheduleSettings {
    ScheduleSettings::new().cron("0 0 12 1 3 * 2026", "UTC")
}

#[tokio::test]
async fn a_declared_schedule_without_a_time_left_does_not_keep_jobs_from_running() {
    let world = World::new();
    world.clock.set(START + 2.days());
    let program = world.start(Some(ended())).await;
    let other = program.dq.recurring_in(QUEUE, "other").every(1.hours());
    assert!(other.upsert().await.unwrap());
    program.run_until(50.hours()).await;
    assert_eq!(world.take_runs(), hours([49, 50]));
    assert!(program.schedule().get().await.unwrap().is_none());
}

#[tokio::test]
async fn jobs_run_although_a_declared_schedule_cannot_be_stored() {
    let world = World::new();
    let old = world.start(Some(hourly())).await;
    old.run_until(2.days()).await;
    world.take_runs();
    assert!(old.schedule().run_now().await.unwrap().is_some());
    drop(old);
    let new = world.start(Some(ended())).await;
    let error = new.runner.run_due().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert_eq!(world.take_runs(), [2.days()]);
}

/// The clock, which store and programs share here, is briefly a year ahead.
#[tokio::test]
async fn a_store_clock_that_was_far_ahead_does_not_silence_a_schedule() {
    for declares in [true, false] {
        let world = World::new();
        let start = || world.start(declares.then(hourly));
        let program = start().await;
        if !declares {
            assert!(program.schedule().every(1.hours()).upsert().await.unwrap());
        }
        program.run_until(1.hours()).await;
        world.clock.set(START + 365.days());
        program.runner.run_due().await.unwrap();
        world.clock.set(START + 90.minutes());
        world.take_runs();
        let restarted = start().await;
        if !declares {
            assert!(restarted.schedule().every(1.hours()).upsert().await.unwrap());
        }
        restarted.run_until(3.hours()).await;
        assert_eq!(world.take_runs(), hours([2, 3]), "declared: {declares}");
    }
}

#[tokio::test]
async fn the_configuration_declares_schedules() {
    let world = World::new();
    let schedules = "[schedules.nightly]\nqueue = \"REPORT\"\ncron = \"30 2 * * *\"\npayload = 7\n\
         [schedules.elsewhere]\nqueue = \"OTHER\"\nevery = \"1h\"";
    let dq = world.connect_configured(schedules).await;
    let Program { dq, runner, .. } = world.program(dq, None).unwrap();
    runner.run_due().await.unwrap();
    world.clock.set(START + 3.hours());
    runner.run_due().await.unwrap();
    let runs = std::mem::take(&mut *dq_core::sync::lock(&world.runs));
    assert_eq!(runs, [(START + 150.minutes(), 7)]);
    assert_eq!(dq.queue("OTHER").unwrap().stats().await.unwrap().ready, 1, "three were due");
}

#[tokio::test]
async fn two_schedules_of_one_name_are_refused_where_they_are_declared() {
    let world = World::new();
    let schedule = format!("[schedules.{QUEUE}]\nqueue = \"Q\"\nevery = \"1m\"");
    let dq = world.connect_configured(&schedule).await;
    let error = world.program(dq, Some(hourly())).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Duplicate);
    for part in ["fixture.rs:", "[schedules.REPORT]", "rename"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

#[tokio::test]
async fn a_bad_schedule_of_a_handler_object_names_the_handler() {
    let world = World::new();
    for (settings, part) in [
        (ScheduleSettings::new().every(0.seconds()), "every is refused"),
        (ScheduleSettings::new().cron("0 0 31 2 *", "UTC"), "no such date"),
        (ScheduleSettings::new(), "cron is missing"),
    ] {
        let error = world.start_over(world.store.clone(), Some(settings)).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(part), "{error}");
        assert!(error.to_string().contains("fixture.rs:"), "{error}");
    }
}
