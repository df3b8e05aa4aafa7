//! Backfills: a call schedules past occurrences.

use dq_core::{Dq, DurationExt, ErrorKind, Limits};

use crate::recurring::fixture::{QUEUE, START, World, hours};

#[tokio::test]
async fn backfill_schedules_past_times_once() {
    let world = World::new();
    let program = world.start_hourly().await;
    program.run_until(2.hours()).await;
    assert_eq!(world.take_runs(), hours([1, 2]));
    let backfill = || program.schedule().backfill(START - 3.hours(), START + 2.hours());
    // Two of the five have run, and their ids are still pinned.
    let first = backfill().await.unwrap();
    assert_eq!((first.scheduled, first.existing), (3, 2));
    program.run_until(2.hours()).await;
    assert_eq!(world.take_runs().len(), 3);
    let again = backfill().await.unwrap();
    assert_eq!((again.scheduled, again.existing), (0, 5), "they have run");
}

#[tokio::test]
async fn a_backfill_without_a_schedule_or_of_too_many_occurrences_is_refused() {
    let world = World::new();
    let program = world.start(None).await;
    let error = program.schedule().backfill(START, START).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(program.schedule().every(1.hours()).upsert().await.unwrap());
    let error = program.schedule().backfill(START - 1001.hours(), START).await.unwrap_err();
    assert!(error.to_string().contains("1000"), "{error}");
}

#[tokio::test]
async fn backfill_leaves_future_occurrences_to_the_schedule() {
    let world = World::new();
    let program = world.start_hourly().await;
    program.run_until(2.hours()).await;
    world.take_runs();
    let until = START + 2_000.hours();
    let stored = program.schedule().backfill(START - 1.hours(), until).await.unwrap();
    assert_eq!(stored.scheduled, 1, "00:00");
    program.run_until(2.hours()).await;
    assert_eq!(world.take_runs(), hours([0]));
    program.run_until(4.hours()).await;
    assert_eq!(world.take_runs(), hours([3, 4]));
}

#[tokio::test]
async fn many_occurrences_are_stored_in_calls_of_the_allowed_size() {
    let world = World::new();
    let mut limits = Limits::default();
    limits.bulk = 3;
    let dq = world.connect(Dq::builder().limits(limits)).await;
    let schedule = || dq.recurring_in(QUEUE, QUEUE).every(1.hours());
    assert!(schedule().catch_up("all:10".parse().unwrap()).upsert().await.unwrap());
    world.clock.set(START + 12.hours());
    world.program(dq.clone(), None).unwrap().runner.run_due().await.unwrap();
    assert_eq!(world.take_runs(), hours([3, 4, 5, 6, 7, 8, 9, 10, 11, 12]));
    assert_eq!(schedule().backfill(START - 7.hours(), START).await.unwrap().scheduled, 7);
}
