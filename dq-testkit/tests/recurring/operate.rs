//! Calls on schedules.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{
    Backend, Capabilities, CatchUp, Dq, DurationExt, Ending, ErrorKind, JobState, Layer, Limits,
    Overlap, Result, Runner, Scheduled, Timestamp, async_trait,
};
use futures_util::FutureExt;
use tokio::sync::Notify;

use crate::recurring::fixture::{QUEUE, Report, START, World, hourly};

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
    let runs = std::mem::take(&mut *dq_core::sync::lock(&world.runs));
    let at = |day: u64| START + day.days() + 150.minutes();
    assert_eq!(runs, [(at(0), 1), (at(1), 1), (at(2), 2)]);
}

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
    assert_eq!(world.take_runs(), [1.hours()]);
}

#[tokio::test]
async fn pause_resume_skip_and_remove() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = || program.schedule();
    for call in [schedule().pause().await, schedule().skip_next().await, schedule().remove().await]
    {
        assert!(!call.unwrap(), "there is no such schedule");
    }
    assert!(schedule().get().await.unwrap().is_none());
    assert!(schedule().run_now().await.unwrap().is_none());
    assert!(schedule().every(1.hours()).upsert().await.unwrap());
    assert!(schedule().skip_next().await.unwrap());
    program.run_until(2.hours()).await;
    assert_eq!(world.take_runs(), [2.hours()], "01:00 was left out");

    assert!(schedule().pause().await.unwrap());
    assert!(!schedule().pause().await.unwrap(), "it is paused already");
    assert!(schedule().get().await.unwrap().unwrap().paused);
    // A changed specification leaves it paused.
    assert!(schedule().every(1.hours()).jitter(1.seconds()).upsert().await.unwrap());
    program.run_until(5.hours() + 1.minutes()).await;
    assert!(world.take_runs().is_empty());
    assert!(schedule().resume().await.unwrap());
    assert!(!schedule().resume().await.unwrap());
    program.run_until(6.hours() + 1.minutes()).await;
    assert_eq!(world.take_runs(), [6.hours()], "those of the pause do not run later");

    assert!(schedule().remove().await.unwrap());
    program.run_until(9.hours()).await;
    assert!(world.take_runs().is_empty());
    assert!(program.dq.schedules().await.unwrap().is_empty());
}

/// All runners are stopped during the pause.
#[tokio::test]
async fn what_came_due_in_a_pause_without_runners_does_not_run_later() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = || program.schedule();
    assert!(schedule().every(1.hours()).upsert().await.unwrap());
    program.run_until(1.hours()).await;
    assert!(schedule().pause().await.unwrap());
    world.clock.set(START + 5.hours() + 30.minutes());
    assert!(schedule().resume().await.unwrap());
    program.run_until(6.hours()).await;
    assert_eq!(world.take_runs(), [1.hours(), 6.hours()]);
}

#[tokio::test]
async fn what_skip_next_leaves_out_stays_left_out() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = || program.schedule();
    let upsert = || schedule().every(1.hours()).upsert();
    assert!(upsert().await.unwrap());
    for _ in 0..2 {
        assert!(schedule().skip_next().await.unwrap());
    }
    assert!(schedule().pause().await.unwrap() && schedule().resume().await.unwrap());
    assert!(!upsert().await.unwrap(), "the store has it already");
    program.run_until(4.hours()).await;
    assert_eq!(world.take_runs(), [3.hours(), 4.hours()]);
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
    assert_eq!(world.take_runs(), [1.hours(), 2.hours()]);
}

#[tokio::test]
async fn a_longer_jitter_repeats_no_occurrence() {
    let world = World::new();
    let program = world.start(None).await;
    let hourly = || program.schedule().every(1.hours()).catch_up(CatchUp::None);
    assert!(hourly().upsert().await.unwrap());
    program.run_until(1.hours()).await;
    assert_eq!(world.take_runs(), [1.hours()]);
    // An occurrence's id is free again after 16 minutes.
    program.run_until(1.hours() + 17.minutes()).await;
    let changed = || hourly().jitter(59.minutes());
    assert!(changed().upsert().await.unwrap());
    let next = program.schedule().next(1).await.unwrap()[0];
    assert!(
        next > START + 2.hours() + 17.minutes(),
        "{next}: the jitter is too short for this test"
    );
    assert!(!changed().upsert().await.unwrap(), "the store has it already");
    program.run_to(next).await.unwrap();
    assert_eq!(world.take_runs(), [2.hours()]);
}

#[tokio::test]
async fn other_times_with_a_jitter_begin_with_the_first_that_is_due() {
    let world = World::new();
    let program = world.start(None).await;
    let at = |hour: u32| program.schedule().cron(&format!("0 {hour} * * *"), "UTC");
    assert!(at(5).upsert().await.unwrap());
    program.run_until(2.hours() + 17.minutes()).await;
    assert!(at(2).jitter(59.minutes()).upsert().await.unwrap());
    let next = program.schedule().next(1).await.unwrap()[0];
    assert!(next > START + 2.hours() + 17.minutes() && next < START + 3.hours(), "{next}");
    program.run_to(next).await.unwrap();
    assert_eq!(world.take_runs(), [2.hours()]);
}

#[tokio::test]
async fn run_now_respects_overlap() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = || program.schedule();
    assert!(schedule().every(1.hours()).upsert().await.unwrap());
    assert!(matches!(schedule().run_now().await.unwrap(), Some(Scheduled::Created(_))));
    assert!(matches!(schedule().run_now().await.unwrap(), Some(Scheduled::Kept(_))));
    program.run_until(1.hours()).await;
    assert_eq!(world.take_runs(), [0.hours(), 1.hours()]);
    assert!(schedule().every(1.hours()).overlap(Overlap::Allow).upsert().await.unwrap());
    for _ in 0..2 {
        assert!(matches!(schedule().run_now().await.unwrap(), Some(Scheduled::Created(_))));
    }
}

#[tokio::test]
async fn backfill_schedules_past_times_once() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = || program.schedule();
    let error = schedule().backfill(START, START).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(schedule().every(1.hours()).upsert().await.unwrap());
    program.run_until(2.hours()).await;
    assert_eq!(world.take_runs(), [1.hours(), 2.hours()]);
    let backfill = || schedule().backfill(START - 3.hours(), START + 2.hours());
    // Two of the five have run, and their ids are still pinned.
    let first = backfill().await.unwrap();
    assert_eq!((first.scheduled, first.existing), (3, 2));
    program.run_until(2.hours()).await;
    assert_eq!(world.take_runs().len(), 3);
    let again = backfill().await.unwrap();
    assert_eq!((again.scheduled, again.existing), (0, 5), "they have run");
    let error = schedule().backfill(START - 1001.hours(), START).await.unwrap_err();
    assert!(error.to_string().contains("1000"), "{error}");
}

#[tokio::test]
async fn backfill_leaves_future_occurrences_to_the_schedule() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = || program.schedule();
    assert!(schedule().every(1.hours()).upsert().await.unwrap());
    program.run_until(2.hours()).await;
    world.take_runs();
    let stored = schedule().backfill(START - 1.hours(), START + 2_000.hours()).await.unwrap();
    assert_eq!(stored.scheduled, 1, "00:00");
    program.run_until(2.hours()).await;
    assert_eq!(world.take_runs(), [0.hours()]);
    program.run_until(4.hours()).await;
    assert_eq!(world.take_runs(), [3.hours(), 4.hours()]);
}

#[tokio::test]
async fn all_schedules_are_listed_the_next_due_first() {
    let world = World::new();
    let program = world.start(None).await;
    for (name, every) in [("b", 2.hours()), ("a", 3.hours()), ("c", 1.hours())] {
        assert!(program.dq.recurring_in("Q", name).every(every).upsert().await.unwrap());
    }
    let all = program.dq.schedules().await.unwrap();
    let names: Vec<_> = all.iter().map(|view| (view.name.as_str(), view.next_due)).collect();
    let at = |hours: u64| START + hours.hours();
    assert_eq!(names, [("c", at(1)), ("b", at(2)), ("a", at(3))]);
    assert!(all.iter().all(|view| view.generation.is_none() && !view.orphaned && !view.paused));
    assert_eq!(all[0].spec.times.to_string(), "every 1h");
}

#[tokio::test]
async fn what_cannot_be_is_refused_and_nothing_is_stored() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = || program.schedule();
    let long = "n".repeat(201);
    for (refused, part) in [
        (schedule().upsert().await, "cron is missing"),
        (schedule().every(0.seconds()).upsert().await, "interval"),
        (schedule().cron("0 0 31 2 *", "UTC").upsert().await, "no such date"),
        (schedule().cron("@daily", "Mars").upsert().await, "Mars"),
        // In the past.
        (schedule().cron("0 0 12 1 1 * 2020", "UTC").upsert().await, "no time in the future"),
        (program.dq.recurring_in("dq.x", "n").every(1.hours()).upsert().await, "reserved"),
        (program.dq.recurring_in("Q", "").every(1.hours()).upsert().await, "empty"),
        (program.dq.recurring_in("Q", &long).every(1.hours()).upsert().await, "201 bytes"),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    assert!(program.dq.schedules().await.unwrap().is_empty());
}

/// The other process pauses and resumes the schedule.
#[tokio::test]
async fn concurrent_changes_do_not_undo_each_other() {
    let world = World::new();
    let start = || world.start_over(Arc::new(Yielding(world.store.clone())), None);
    let (one, two) = (start().await.unwrap(), start().await.unwrap());
    assert!(one.schedule().every(1.hours()).upsert().await.unwrap());
    for round in 0_u64..20 {
        let paused = round % 2 == 0;
        let change = one.schedule().every((round + 2).hours()).upsert();
        let set = async {
            if paused { two.schedule().pause().await } else { two.schedule().resume().await }
        };
        let clock = async {
            // A conflicting change waits on the virtual clock.
            for _ in 0..200 {
                tokio::task::yield_now().await;
                world.clock.advance(10.millis());
            }
        };
        let (changed, set, ()) = tokio::join!(change, set, clock);
        assert!(changed.unwrap() && set.unwrap());
        let view = one.schedule().get().await.unwrap().unwrap();
        assert_eq!(view.paused, paused, "round {round}");
        assert_eq!(view.spec.times.to_string(), format!("every {}h", round + 2));
    }
}

/// Yields before each call, so that two processes' calls alternate.
#[derive(Debug)]
struct Yielding(Arc<dyn Backend>);

#[async_trait]
impl Layer for Yielding {
    fn inner(&self) -> &dyn Backend {
        &*self.0
    }

    async fn before(&self, _method: &'static str) -> Result<()> {
        tokio::task::yield_now().await;
        Ok(())
    }
}

#[derive(Debug)]
struct Lacking {
    store: Arc<dyn Backend>,
    capabilities: Capabilities,
}

impl Layer for Lacking {
    fn inner(&self) -> &dyn Backend {
        &*self.store
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}

#[tokio::test]
async fn a_store_that_lacks_a_capability_refuses_schedules() {
    type Remove = fn(&mut Capabilities);
    let lacks: [(&str, Remove); 5] = [
        ("keys", |it| it.keys = false),
        ("reading", |it| it.browse = false),
        ("cancel", |it| it.cancel = false),
        ("next steps", |it| it.again = false),
        ("remembering", |it| it.history = false),
    ];
    for (name, remove) in lacks {
        let world = World::new();
        let mut capabilities = world.store.capabilities();
        remove(&mut capabilities);
        let store = Arc::new(Lacking { store: world.store.clone(), capabilities });
        let program = world.start_over(store.clone(), None).await.unwrap();
        let called = program.schedule().every(1.hours()).upsert().await.unwrap_err();
        let declared = world.start_over(store, Some(hourly())).await;
        for error in [called, declared.err().unwrap()] {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
            assert!(error.to_string().contains(name), "{name}: {error}");
        }
    }
}

#[tokio::test]
async fn the_horizon_of_the_client_does_not_end_a_schedule() {
    let world = World::new();
    let mut limits = Limits::default();
    limits.horizon = 1.days();
    let (dq, runner) = start_with_limits(&world, limits).await;
    assert!(dq.recurring_in(QUEUE, QUEUE).cron("@weekly", "UTC").upsert().await.unwrap());
    for day in 0_u64..=14 {
        world.clock.set(START + day.days());
        runner.run_due().await.unwrap();
    }
    assert_eq!(world.take_runs(), [7.days(), 14.days()]);
}

/// Calls to this method wait for the test.
#[derive(Debug)]
struct Gate {
    store: Arc<dyn Backend>,
    method: &'static str,
    arrived: Notify,
    goes_on: Notify,
}

#[async_trait]
impl Layer for Gate {
    fn inner(&self) -> &dyn Backend {
        &*self.store
    }

    async fn before(&self, method: &'static str) -> Result<()> {
        if method == self.method {
            self.arrived.notify_one();
            self.goes_on.notified().await;
        }
        Ok(())
    }
}

impl Gate {
    fn of(store: Arc<dyn Backend>, method: &'static str) -> Arc<Self> {
        Arc::new(Self { store, method, arrived: Notify::new(), goes_on: Notify::new() })
    }
}

/// The removal comes between a change's read and write.
#[tokio::test]
async fn a_change_in_flight_does_not_bring_a_removed_schedule_back() {
    for pauses in [true, false] {
        let world = World::new();
        let program = world.start(None).await;
        assert!(program.schedule().every(1.hours()).upsert().await.unwrap());
        let gate = Gate::of(world.store.clone(), "schedule");
        let slow = world.start_over(gate.clone(), None).await.unwrap();
        let change = async {
            match pauses {
                true => slow.schedule().pause().await,
                false => slow.schedule().every(2.hours()).upsert().await,
            }
        };
        let remove = async {
            gate.arrived.notified().await;
            let removed = program.schedule().remove().await;
            gate.goes_on.notify_one();
            // A change that came too late retries after a pause, on the virtual clock.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            world.clock.advance(1.seconds());
            // The upsert finds no schedule.
            gate.goes_on.notify_one();
            removed
        };
        let both = async { tokio::join!(change, remove) };
        let (changed, removed) =
            tokio::time::timeout(2.minutes(), both).await.expect("both calls end");
        assert!(removed.unwrap());
        assert_eq!(changed.unwrap(), !pauses);
        let found = program.schedule().get().await.unwrap();
        let found = found.map(|view| view.spec.times.to_string());
        // The late pause finds no schedule; the late upsert creates a new one.
        let expected = (!pauses).then(|| "every 2h".to_owned());
        assert_eq!(found, expected);
    }
}

/// The change starts between the removal's two calls.
#[tokio::test]
async fn a_change_during_a_removal_does_not_bring_the_schedule_back() {
    let world = World::new();
    let program = world.start(None).await;
    assert!(program.schedule().every(1.hours()).upsert().await.unwrap());
    let removal = Gate::of(world.store.clone(), "cancel");
    let remover = world.start_over(removal.clone(), None).await.unwrap();
    let change = Gate::of(world.store.clone(), "schedule");
    let changer = world.start_over(change.clone(), None).await.unwrap();
    let removed = tokio::spawn(async move { remover.schedule().remove().await });
    removal.arrived.notified().await;
    assert!(program.schedule().get().await.unwrap().is_none(), "it is being removed");
    assert!(program.dq.schedules().await.unwrap().is_empty());
    let changed = tokio::spawn(async move { changer.schedule().pause().await });
    while !changed.is_finished() && change.arrived.notified().now_or_never().is_none() {
        tokio::task::yield_now().await;
    }
    removal.goes_on.notify_one();
    assert!(removed.await.unwrap().unwrap());
    change.goes_on.notify_one();
    assert!(!changed.await.unwrap().unwrap(), "there is nothing to pause");
    assert!(program.schedule().get().await.unwrap().is_none());
}

/// The changes come before the removal's first call, and before the second.
#[tokio::test]
async fn a_removal_that_meets_two_changes_removes_the_schedule() {
    let world = World::new();
    let program = world.start(None).await;
    assert!(program.schedule().every(1.hours()).upsert().await.unwrap());
    let first = Gate::of(world.store.clone(), "schedule");
    let second = Gate::of(first.clone(), "cancel");
    let remover = world.start_over(second.clone(), None).await.unwrap();
    let removed = tokio::spawn(async move { remover.schedule().remove().await });
    first.arrived.notified().await;
    assert!(program.schedule().pause().await.unwrap());
    first.goes_on.notify_one();
    second.arrived.notified().await;
    assert!(program.schedule().resume().await.unwrap());
    // It retries after a pause, on the virtual clock.
    for _ in 0..1_000 {
        first.goes_on.notify_one();
        second.goes_on.notify_one();
        world.clock.advance(10.millis());
        tokio::task::yield_now().await;
    }
    assert!(removed.is_finished(), "the removal ends");
    assert!(removed.await.unwrap().unwrap());
    assert!(program.schedule().get().await.unwrap().is_none());
}

/// The name is free as soon as the removal has begun, at any due time.
#[tokio::test]
async fn a_schedule_replaces_one_whose_removal_is_under_way() {
    let world = World::new();
    let program = world.start(None).await;
    assert!(program.schedule().cron("0 0 1 1 *", "UTC").upsert().await.unwrap());
    let removal = Gate::of(world.store.clone(), "cancel");
    let remover = world.start_over(removal.clone(), None).await.unwrap();
    let removed = tokio::spawn(async move { remover.schedule().remove().await });
    removal.arrived.notified().await;
    assert!(program.schedule().every(1.hours()).upsert().await.unwrap());
    removal.goes_on.notify_one();
    assert!(removed.await.unwrap().unwrap());
    program.run_until(1.hours()).await;
    assert_eq!(world.take_runs(), [1.hours()], "the new one is not removed");
}

/// The process ends after the first call.
#[tokio::test]
async fn a_removal_that_is_interrupted_removes_the_schedule() {
    for calls_again in [true, false] {
        let world = World::new();
        let program = world.start(None).await;
        assert!(program.schedule().every(1.hours()).upsert().await.unwrap());
        let removal = Gate::of(world.store.clone(), "cancel");
        let remover = world.start_over(removal.clone(), None).await.unwrap();
        let interrupted = tokio::spawn(async move { remover.schedule().remove().await });
        removal.arrived.notified().await;
        interrupted.abort();
        assert!(interrupted.await.unwrap_err().is_cancelled());
        if calls_again {
            assert!(program.schedule().remove().await.unwrap());
        }
        program.run_until(3.hours()).await;
        assert!(world.take_runs().is_empty());
        assert!(program.schedule().every(2.hours()).upsert().await.unwrap(), "a new one");
        program.run_until(4.hours()).await;
        assert_eq!(world.take_runs(), [4.hours()]);
    }
}

#[tokio::test]
async fn the_view_has_the_last_occurrence_and_its_job() {
    let world = World::new();
    let program = world.start(None).await;
    let view = async || program.schedule().get().await.unwrap().unwrap();
    let last = async || view().await.last_job(&program.dq).await.unwrap();
    assert!(program.schedule().cron("0 3 * * *", "UTC").upsert().await.unwrap());
    assert_eq!(view().await.last_occurrence, None);
    assert!(last().await.is_none());
    program.run_until(4.hours()).await;
    assert_eq!(view().await.last_occurrence, Some(START + 3.hours()));
    let job = last().await.unwrap();
    assert_eq!((job.state, job.ended.unwrap().ending), (JobState::Ended, Ending::Done));

    // A skipped occurrence has no job.
    assert!(program.schedule().skip_next().await.unwrap());
    let queue = program.dq.queue(QUEUE).unwrap();
    program.run_until(30.hours()).await;
    assert_eq!(view().await.last_occurrence, Some(START + 3.hours()));
    assert!(queue.pause().await.unwrap());
    program.run_until(52.hours()).await;
    let view = view().await;
    assert_eq!(view.last_occurrence, Some(START + 51.hours()));
    assert_eq!(last().await.unwrap().state, JobState::Ready);
    assert_eq!((view.spec.cron(), view.spec.zone()), (Some("0 3 * * *"), Some("UTC")));
    assert_eq!(view.spec.every(), None);
    let every = program.dq.recurring_in(QUEUE, "every").every(90.seconds());
    assert!(every.upsert().await.unwrap());
    let every = program.dq.recurring_in(QUEUE, "every").get().await.unwrap().unwrap();
    assert_eq!((every.spec.cron(), every.spec.every()), (None, Some(90.seconds())));
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
    let error = program.schedule().every(1.hours()).jitter(Duration::from_micros(900));
    let error = error.upsert().await.unwrap_err();
    assert!(error.to_string().contains("millisecond"), "{error}");
}

async fn start_with_limits(world: &World, limits: Limits) -> (Dq, Runner) {
    let dq = Dq::builder().backend(world.store.clone()).clock(world.clock.clone());
    let dq = dq.limits(limits).connect().await.unwrap();
    let report = Report { runs: Arc::clone(&world.runs), schedule: None };
    let runner = dq.runner().without_linked_handlers().handler(report).build().unwrap();
    (dq, runner)
}

#[tokio::test]
async fn many_occurrences_are_stored_in_calls_of_the_allowed_size() {
    let world = World::new();
    let mut limits = Limits::default();
    limits.bulk = 3;
    let (dq, runner) = start_with_limits(&world, limits).await;
    let schedule = || dq.recurring_in(QUEUE, QUEUE).every(1.hours());
    assert!(schedule().catch_up("all:10".parse().unwrap()).upsert().await.unwrap());
    world.clock.set(START + 12.hours());
    runner.run_due().await.unwrap();
    assert_eq!(world.take_runs(), (3_u64..=12).map(|hour| hour.hours()).collect::<Vec<_>>());
    assert_eq!(schedule().backfill(START - 7.hours(), START).await.unwrap().scheduled, 7);
}

#[tokio::test]
async fn a_forecast_counts_occurrences_with_the_queue_of_their_jobs() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = |queue: &str, name: &str| program.dq.recurring_in(queue, name);
    assert!(schedule("A", "hourly").every(1.hours()).upsert().await.unwrap());
    assert!(schedule("A", "nightly").cron("0 2 * * *", "UTC").upsert().await.unwrap());
    assert!(schedule("B", "paused").every(1.hours()).upsert().await.unwrap());
    assert!(schedule("B", "paused").pause().await.unwrap());
    assert!(schedule("C", "weekly").cron("@weekly", "UTC").upsert().await.unwrap());
    let job = program.dq.queue("A").unwrap().schedule("1", "application/json");
    assert!(job.at(START + 2.hours()).await.unwrap().is_stored());
    let forecasts = program.dq.forecast_all(1.days()).await.unwrap();
    let [forecast] = &forecasts[..] else { panic!("{forecasts:?}") };
    assert_eq!((forecast.queue.as_str(), forecast.overdue, forecast.paused), ("A", 0, false));
    let due = |from: Timestamp| {
        let minute = forecast.minutes.iter().find(|minute| minute.from == from);
        minute.unwrap().due
    };
    assert_eq!((due(START + 1.hours()), due(START + 1.hours() + 1.minutes())), (1, 0));
    assert_eq!(due(START + 2.hours()), 3, "two occurrences and a job");
    let total: u64 = forecast.minutes.iter().map(|minute| minute.due).sum();
    assert_eq!(total, 23 + 1 + 1, "24:00 is after the window");

    // Nothing has run since, so missed occurrences are due at once.
    world.clock.set(START + 5.hours() + 30.seconds());
    assert!(program.dq.queue("A").unwrap().pause().await.unwrap());
    let forecast = program.dq.forecast_all(10.minutes()).await.unwrap().remove(0);
    assert_eq!((forecast.overdue, forecast.minutes[0].due, forecast.paused), (1, 2, true));
    assert_eq!(forecast.minutes[9].backlog, Some(3), "a paused queue is not drained");
}
