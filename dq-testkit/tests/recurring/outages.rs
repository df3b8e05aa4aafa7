//! Which occurrences run after a time without processes, and while earlier jobs are live.

use dq_core::{CatchUp, DurationExt, Overlap};

use crate::recurring::fixture::{Program, QUEUE, START, World, hours};

const OVERLAPS: [Overlap; 3] = [Overlap::Skip, Overlap::Allow, Overlap::QueueOne];

/// The schedule is hourly, and no process runs for a while, from half a minute before noon. Each
/// entry lists which occurrences run late, in hours before the last missed one, for the overlaps
/// `skip`, `allow` and `queue_one`.
#[tokio::test]
async fn what_runs_after_an_outage() {
    type Late<'a> = [&'a [u64]; 3];
    const ONE: Late<'static> = [&[0], &[0], &[0]];
    const NONE: Late<'static> = [&[], &[], &[]];
    // While the first is live, the others are skipped, or one waits.
    const THREE: Late<'static> = [&[2], &[2, 1, 0], &[2, 1]];
    let half_past = 30.minutes();
    let (minute, hours, days) = (1.minutes(), 3.hours() + half_past, 40.days() + half_past);
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
            assert_eq!(world.take_runs().len(), 11, "{context}");
            drop(before);

            let restarted = stopped + down;
            world.clock.set(START + restarted);
            let after = world.start(None).await;
            // A queued one starts a while after the one before it.
            after.run_until(restarted + 10.minutes()).await;
            let last_missed = restarted.as_secs() / 3_600;
            let expected: Vec<_> =
                late.iter().map(|before| (last_missed - before).hours()).collect();
            assert_eq!(world.take_runs(), expected, "{context}");

            after.run_until((last_missed + 3).hours()).await;
            let regular = [1, 2, 3].map(|later| (last_missed + later).hours());
            assert_eq!(world.take_runs(), regular, "{context}: then it goes on");
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
            let expected: Vec<_> = expected.iter().map(|hour| hour.hours()).collect();
            assert_eq!(world.take_runs(), expected, "{catch_up}, {overlap:?}");
            program.run_until(5.hours()).await;
            assert_eq!(world.take_runs(), hours([4, 5]), "{catch_up}, {overlap:?}");
        }
    }
}

/// The runner checks again and again whether the earlier job has ended. The intervals between the
/// checks grow.
#[tokio::test]
async fn an_occurrence_that_waits_costs_few_calls() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = program.schedule().every(1.days()).overlap(Overlap::QueueOne);
    assert!(schedule.upsert().await.unwrap());
    let queue = program.dq.queue(QUEUE).unwrap();
    assert!(queue.pause().await.unwrap());
    program.run_until(2.days() - 1.minutes()).await;
    let mut checks = 0;
    for second in 0..3_600_u64 {
        world.clock.set(START + 2.days() + second.seconds());
        checks += program.runner.run_due().await.unwrap().jobs;
    }
    assert!((50..120).contains(&checks), "{checks} checks in an hour");
}

#[tokio::test]
async fn a_change_does_not_delay_an_occurrence_that_waits() {
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
