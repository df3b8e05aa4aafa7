//! A process that crashes at each store call, and a move to another store.

use std::sync::Arc;

use dq_core::{Backend, Dq, DurationExt, Overlap, QueueName};
use dq_testkit::faults::{Crash, CrashPoint};
use dq_testkit::fixture::memory;

use crate::common::open::OpenStore;
use crate::common::stepped::Stepped;
use crate::recurring::fixture::{Program, START, World, hourly, hours};

const MAX_STEPS: usize = 200;

/// The process declares the schedule, handles it and runs jobs. A second process continues. Each
/// handler runs once per occurrence, unless the crash comes between the run and its settlement.
#[tokio::test]
async fn a_crash_between_two_steps_neither_loses_nor_repeats_an_occurrence() {
    for crash in [Crash::Before, Crash::After] {
        for overlap in [Overlap::Allow, Overlap::Skip, Overlap::QueueOne] {
            let mut steps = 0;
            for step in 1..=MAX_STEPS {
                let world = World::new();
                let point = CrashPoint::default();
                let store = Stepped::over(world.store.clone(), &point, true);
                let schedule = hourly().overlap(overlap).catch_up("all:10".parse().unwrap());
                let first = world.start_over(store, Some(schedule.clone())).await.unwrap();
                point.set(Some((step, crash)));
                let ended = first.try_run_until(3.hours()).await;
                if ended.is_ok() {
                    steps = step;
                    break;
                }
                drop(first);
                let context = format!("{crash:?} {step}, {overlap:?}");
                let second = world.start(Some(schedule)).await;
                // Meanwhile the first process's leases expire.
                second.run_until(5.hours() + 30.minutes()).await;
                let mut runs = world.take_runs();
                let twice = runs.len().saturating_sub(5);
                assert!(twice <= 1, "{context}: {runs:?}");
                runs.sort_unstable();
                runs.dedup();
                assert_eq!(runs, hours([1, 2, 3, 4, 5]), "{context}");
                // A job stored twice in a row counts twice.
                let stats = second.dq.queue("REPORT").unwrap().stats().await.unwrap();
                let created = stats.totals.unwrap().created;
                assert_eq!(created, 5, "{context}: each occurrence is one job");
            }
            assert!(steps > 20, "the test covers {steps} steps");
        }
    }
}

#[tokio::test]
async fn schedules_move_out_of_a_store_that_is_drained() {
    let world = World::new();
    let before = world.start_hourly().await;
    before.run_until(2.hours()).await;
    drop(before);
    assert_eq!(world.take_runs(), hours([1, 2]));

    let main = Arc::new(memory(world.clock.clone()));
    let drained = OpenStore::boxed(world.store.clone());
    let dq = Dq::builder().backend(main.clone()).drain(drained);
    let dq = dq.clock(world.clock.clone()).connect().await.unwrap();
    let Program { runner, .. } = world.program(dq, None).unwrap();
    for hour in 3_u64..=5 {
        world.clock.set(START + hour.hours());
        runner.run_due().await.unwrap();
        runner.run_due().await.unwrap();
    }
    assert_eq!(world.take_runs(), hours([3, 4, 5]));
    let schedule_jobs = [QueueName::new("dq.schedules").unwrap()];
    assert_eq!(world.store.stats(&schedule_jobs).await.unwrap()[0].stored(), 0);
    assert_eq!(Backend::stats(&*main, &schedule_jobs).await.unwrap()[0].stored(), 1);
}
