//! Changed specifications: jitter, other times, and values that the store rounds.

use std::time::Duration;

use dq_core::{CatchUp, DurationExt};

use crate::recurring::fixture::{START, World, hours};

#[tokio::test]
async fn jitter_makes_jobs_later_and_leaves_the_nominal_time() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = || program.schedule();
    program.run_until(30.minutes()).await;
    assert!(schedule().every(1.hours()).jitter(10.minutes()).upsert().await.unwrap());
    let due = schedule().next(2).await.unwrap();
    let later = due[0].since(START + 1.hours());
    assert!(later > 0.seconds() && later < 10.minutes(), "{later:?}");
    assert_eq!(due[1].since(due[0]), 1.hours());
    program.run_until(1.hours() + later - 1.millis()).await;
    assert!(world.take_runs().is_empty());
    program.run_until(1.hours() + later).await;
    assert_eq!(world.take_runs(), hours([1]));
}

#[tokio::test]
async fn a_longer_jitter_repeats_no_occurrence() {
    let world = World::new();
    let program = world.start(None).await;
    let hourly = || program.schedule().every(1.hours()).catch_up(CatchUp::None);
    assert!(hourly().upsert().await.unwrap());
    program.run_until(1.hours()).await;
    assert_eq!(world.take_runs(), hours([1]));
    // An occurrence's id is free again after 16 minutes.
    program.run_until(1.hours() + 17.minutes()).await;

    let changed = || hourly().jitter(59.minutes());
    assert!(changed().upsert().await.unwrap());
    let next = program.schedule().next(1).await.unwrap()[0];
    let too_short = "the jitter is too short for this test";
    assert!(next > START + 2.hours() + 17.minutes(), "{next}: {too_short}");
    assert!(!changed().upsert().await.unwrap(), "the store has it already");
    program.run_to(next).await.unwrap();
    assert_eq!(world.take_runs(), hours([2]));
}

#[tokio::test]
async fn other_times_with_a_jitter_begin_with_the_first_that_is_due() {
    let world = World::new();
    let program = world.start(None).await;
    let daily = |hour: u32| program.schedule().cron(&format!("0 {hour} * * *"), "UTC");
    assert!(daily(5).upsert().await.unwrap());
    program.run_until(2.hours() + 17.minutes()).await;
    assert!(daily(2).jitter(59.minutes()).upsert().await.unwrap());
    let next = program.schedule().next(1).await.unwrap()[0];
    assert!(next > START + 2.hours() + 17.minutes() && next < START + 3.hours(), "{next}");
    program.run_to(next).await.unwrap();
    assert_eq!(world.take_runs(), hours([2]));
}

#[tokio::test]
async fn a_specification_that_the_store_rounds_is_the_same_one() {
    let world = World::new();
    let program = world.start(None).await;
    let upsert = || {
        let schedule = program.schedule().every(1.hours()).jitter(Duration::from_micros(2_500));
        let schedule = schedule.deadline(Duration::from_nanos(3_600_000_000_001));
        schedule.payload(serde_json::json!([0.1 + 0.2, 1e-7 / 3.0])).upsert()
    };
    assert!(upsert().await.unwrap());
    assert!(!upsert().await.unwrap(), "the store has it already");
    let too_short = program.schedule().every(1.hours()).jitter(Duration::from_micros(900));
    let error = too_short.upsert().await.unwrap_err();
    assert!(error.to_string().contains("millisecond"), "{error}");
}
