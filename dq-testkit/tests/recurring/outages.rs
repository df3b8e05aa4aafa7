//! Which occurrences run after a time without processes, and while earlier jobs are live.

use std::time::Duration;

use dq_core::{CatchUp, DurationExt, Overlap};

use crate::recurring::fixture::{Program, QUEUE, START, World, hours};

const OVERLAPS: [Overlap; 3] = [Overlap::Skip, Overlap::Allow, Overlap::QueueOne];

/// No process runs for a while, from half a minute before noon. The schedule is hourly. Each entry
/// lists late occurrences, in hours before the last one, for `skip`, `allow` and `queue_one`.
#[tokio::test]
async fn what_runs_after_an_outage() {
    type Late<'a> = [&'a [u64]; 3];
    const ONE: Late<'static> = [&[0], &[0], &[0]];
    const NONE: Late<'static> = [&[], &[], &[]];
    // While the first is live, the others are skipped, or one waits.
    const THREE: Late<'static> = [&[2], &[2, 1, 0], &[2, 1]];
    let (minute, hours, days) = (1.minutes(), 3.hours(), 40.days());
    for (down, catch_up, late) in [
        // Noon is 30 s late, which counts as on time.
        (minute, "last", ONE),
        (minute, "none", ONE),
        (minute, "all:3", ONE),
        (hours, "last", ONE),
        (hours, "none", NONE),
        (hours, "all:3", THREE),
        (days, "last", ONE),
        (days, "none", NONE),
        (days, "all:3", THREE),
    ] {
        for (overlap, late) in OVERLAPS.into_iter().zip(late) {
            let context = format!("{down:?}, {catch_up}, {overlap:?}");
            let world = World::new();
            let before = world.start(None).await;
            let schedule = before.schedule().every(1.hours()).overlap(overlap);
            let schedule = schedule.catch_up(catch_up.parse().unwrap());
            assert!(schedule.upsert().await.unwrap());
            let stopped = 12.hours() - 30.seconds();
            before.run_until(stopped).await;
            let hours = |from: u64, to: u64| (from..=to).map(|hour| hour.hours());
            assert_eq!(world.take_runs(), hours(1, 11).collect::<Vec<_>>(), "{context}");
            drop(before);

            let restart = stopped + down;
            world.clock.set(START + restart);
            let after = world.start(None).await;
            after.run_until(restart).await;
            // A queued one starts a while after the one before it.
            let last = restart.as_secs() / 3_600;
            after.run_until(restart + 10.minutes()).await;
            let expected: Vec<_> = late.iter().map(|before| (last - before).hours()).collect();
            let mut runs = world.take_runs();
            let next = (last + 1).hours();
            if down == 1.minutes() {
                assert_eq!(runs, expected, "{context}");
            } else {
                // At 14:59:30 the next occurrence is due in half a minute.
                assert_eq!(runs.pop(), Some(next), "{context}");
                assert_eq!(runs, expected, "{context}");
            }
            after.run_until((last + 3).hours()).await;
            let regular = if down == 1.minutes() { last + 1 } else { last + 2 };
            let rest: Vec<_> = hours(regular, last + 3).collect();
            assert_eq!(world.take_runs(), rest, "{context}: then it goes on");
        }
    }
}

#[tokio::test]
async fn an_occurrence_after_its_deadline_does_not_run() {
    let world = World::new();
    let before = world.start(None).await;
    let schedule = before.schedule().every(1.hours()).deadline(90.minutes());
    let all = CatchUp::All(100.try_into().unwrap());
    assert!(schedule.catch_up(all).upsert().await.unwrap());
    before.run_until(1.hours()).await;
    drop(before);
    world.clock.set(START + 10.hours() + 1.minutes());
    let after = world.start(None).await;
    after.run_until(10.hours() + 2.minutes()).await;
    assert_eq!(world.take_runs(), hours([1, 9, 10]));
}

/// The job queue is paused from 00:30 to 03:30, so the first job stays live.
#[tokio::test]
async fn what_runs_while_an_earlier_job_is_live() {
    let (skip, allow, queue_one): (&[u64], &[u64], &[u64]) = (&[1], &[1, 2, 3], &[1, 2]);
    for (overlap, expected) in OVERLAPS.into_iter().zip([skip, allow, queue_one]) {
        for catch_up in ["last", "none", "all:3"] {
            let world = World::new();
            let program = world.start(None).await;
            let schedule = program.schedule().every(1.hours()).overlap(overlap);
            let schedule = schedule.catch_up(catch_up.parse().unwrap());
            assert!(schedule.upsert().await.unwrap());
            let queue = program.dq.queue(QUEUE).unwrap();
            program.run_until(30.minutes()).await;
            assert!(queue.pause().await.unwrap());
            program.run_until(3.hours() + 30.minutes()).await;
            assert!(world.take_runs().is_empty());
            assert!(queue.resume().await.unwrap());
            program.run_until(3.hours() + 50.minutes()).await;
            let hours = |hours: &[u64]| hours.iter().map(|hour| hour.hours()).collect::<Vec<_>>();
            assert_eq!(world.take_runs(), hours(expected), "{catch_up}, {overlap:?}");
            program.run_until(5.hours()).await;
            assert_eq!(world.take_runs(), hours(&[4, 5]), "{catch_up}, {overlap:?}");
        }
    }
}

/// The intervals between checks grow; they are at least a second.
#[tokio::test]
async fn one_that_waits_costs_few_calls() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = program.schedule().every(1.days()).overlap(Overlap::QueueOne);
    assert!(schedule.upsert().await.unwrap());
    let queue = program.dq.queue(QUEUE).unwrap();
    assert!(queue.pause().await.unwrap());
    program.run_until(2.days() - 1.minutes()).await;
    let mut ticks = 0;
    let mut last = Duration::ZERO;
    for second in 0..3_600_u64 {
        let report = {
            world.clock.set(START + 2.days() + second.seconds());
            program.runner.run_due().await.unwrap()
        };
        ticks += report.jobs;
        last = second.seconds();
    }
    assert!(last > 50.minutes() && (50..120).contains(&ticks), "{ticks} in an hour");
}

#[tokio::test]
async fn a_change_does_not_delay_one_that_waits() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = || program.schedule().every(1.days()).overlap(Overlap::QueueOne);
    assert!(schedule().upsert().await.unwrap());
    let queue = program.dq.queue(QUEUE).unwrap();
    assert!(queue.pause().await.unwrap());
    program.run_until(2.days() + 1.minutes()).await;
    assert!(schedule().jitter(1.millis()).upsert().await.unwrap());
    assert!(queue.resume().await.unwrap());
    program.run_until(2.days() + 10.minutes()).await;
    assert_eq!(world.take_runs(), [1.days(), 2.days()]);
}

const LATE: &str = "[queues.REPORT]\nlate = { after = \"10m\", then = \"skip\" }";

async fn start_late(world: &World) -> Program {
    let dq = world.connect_configured(LATE).await;
    world.program(dq, None).unwrap()
}

#[tokio::test]
async fn an_occurrence_that_is_caught_up_on_is_not_late() {
    for (catch_up, expected) in [("last", vec![5]), ("all:3", vec![3, 4, 5])] {
        let world = World::new();
        let program = start_late(&world).await;
        let schedule = program.schedule().every(1.hours()).catch_up(catch_up.parse().unwrap());
        let schedule = schedule.overlap(Overlap::Allow);
        assert!(schedule.upsert().await.unwrap());
        let after = 5.hours() + 30.minutes();
        world.clock.set(START + after);
        program.run_until(after).await;
        let expected: Vec<_> = expected.into_iter().map(|hour: u64| hour.hours()).collect();
        assert_eq!(world.take_runs(), expected, "{catch_up}");
    }
}

#[tokio::test]
async fn an_occurrence_that_has_waited_for_an_earlier_one_is_not_late() {
    let world = World::new();
    let program = start_late(&world).await;
    let schedule = program.schedule().every(1.hours()).overlap(Overlap::QueueOne);
    assert!(schedule.upsert().await.unwrap());
    let queue = program.dq.queue(QUEUE).unwrap();
    assert!(queue.pause().await.unwrap());
    program.run_until(2.hours() + 30.minutes()).await;
    assert!(queue.resume().await.unwrap());
    program.run_until(2.hours() + 40.minutes()).await;
    assert_eq!(world.take_runs(), [2.hours()], "the first one has waited for a runner");
}
