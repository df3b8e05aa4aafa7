//! Simulations of a memory store, on a virtual clock.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{
    Announcement, Backend, CatchUp, ClaimParams, Dq, DurationExt, ErrorKind, Flow, Layer,
    MemoryBackend, Overlap, QueueSimulation, RecurringSchedule, Settlement, Simulation, Timestamp,
    Verdict, VirtualClock, Want,
};

use crate::client::connect;

dq_core::queue!(REPORT: u64);

/// 2026-03-08T05:00Z, midnight in New York, where 02:00 to 03:00 do not exist on that day.
const SHORT_DAY: i64 = 1_772_946_000_000;
/// 2026-11-01T04:00Z, midnight in New York, where 01:00 to 02:00 exist twice on that day.
const LONG_DAY: i64 = 1_793_505_600_000;

struct Fixture {
    dq: Dq,
    store: Arc<MemoryBackend>,
    clock: Arc<VirtualClock>,
}

async fn fixture(now: i64) -> Fixture {
    let clock = Arc::new(VirtualClock::new(Timestamp::from_millis(now)));
    let store = Arc::new(MemoryBackend::new(clock.clone()));
    let dq = connect(store.clone(), &clock).await;
    Fixture { dq, store, clock }
}

impl Fixture {
    fn at(&self, seconds: u64) -> Timestamp {
        Timestamp::EPOCH + seconds.seconds()
    }

    async fn schedule(&self, due: impl IntoIterator<Item = u64>) {
        for seconds in due {
            let job = self.dq.schedule::<REPORT>(1).after(seconds.seconds());
            assert!(job.await.unwrap().is_stored());
        }
    }

    fn report(&self) -> RecurringSchedule<u64> {
        self.dq.recurring::<REPORT>("report").payload(1)
    }

    fn simulate(&self, window: Duration, concurrency: u64, run_time: Duration) -> Simulation {
        self.dq.simulate(window).default_concurrency(concurrency).default_run_time(run_time)
    }
}

async fn only(simulation: Simulation) -> QueueSimulation {
    let mut report = simulation.await.unwrap();
    assert_eq!(report.queues.len(), 1, "{report}");
    report.queues.remove(0)
}

#[tokio::test]
async fn a_peak_waits_for_slots_and_is_drained() {
    let fixture = fixture(0).await;
    fixture.schedule([3_600; 10]).await;
    fixture.schedule([86_400]).await;
    let before = fixture.dq.stats().await.unwrap();
    let simulate = || {
        fixture.dq.simulate(24.hours()).concurrency("REPORT", 2).run_time("REPORT", 10.seconds())
    };
    let once = only(simulate()).await;
    assert_eq!((once.jobs, once.skipped, once.concurrency), (10, 0, 2), "the end is excluded");
    // Two start at 0, 10, 20, 30 and 40 s after their due time.
    let late = [once.lateness_p50, once.lateness_p99, once.lateness_max];
    assert_eq!(late, [20, 40, 40].map(|late| Some(late.seconds())));
    assert_eq!((once.backlog, once.backlog_at), (8, Some(fixture.at(3_600))));
    assert_eq!((once.drained, once.backlog_at_end), (Some(fixture.at(3_640)), 0));
    let text = once.to_string();
    let wanted = "REPORT: 10 jobs, late p50 20s, p99 40s, max 40s, 8 wait at \
                  1970-01-01T01:00:00.000Z, drained at 1970-01-01T01:00:40.000Z";
    assert_eq!(text, wanted);

    let twice = only(simulate().load(2)).await;
    let late = [twice.lateness_p50, twice.lateness_p99, twice.lateness_max];
    assert_eq!(late, [40, 90, 90].map(|late| Some(late.seconds())));
    assert_eq!((twice.jobs, twice.backlog), (20, 18));
    assert_eq!(twice.drained, Some(fixture.at(3_690)));
    assert_eq!(fixture.dq.stats().await.unwrap(), before, "nothing has changed");
}

#[tokio::test]
async fn the_jobs_of_the_window_are_played_to_their_end() {
    let fixture = fixture(0).await;
    fixture.schedule([50, 50, 50, 55]).await;
    let queue = only(fixture.simulate(1.minutes(), 1, 20.seconds())).await;
    assert_eq!((queue.backlog, queue.backlog_at), (3, Some(fixture.at(55))));
    assert_eq!((queue.drained, queue.backlog_at_end), (Some(fixture.at(110)), 3));
}

#[tokio::test]
async fn what_is_overdue_waits_at_the_start_unless_that_is_in_the_future() {
    let fixture = fixture(0).await;
    fixture.schedule([60, 120, 1_000]).await;
    fixture.clock.advance(5.minutes());
    let simulate = || fixture.simulate(1.hours(), 1, 30.seconds());
    let now = only(simulate()).await;
    // The older job starts first, 240 s late, and the other after it.
    assert_eq!(
        (now.jobs, now.lateness_p50, now.lateness_max),
        (3, Some(210.seconds()), Some(240.seconds()))
    );
    assert_eq!(
        (now.backlog, now.backlog_at, now.drained),
        (1, Some(fixture.at(300)), Some(fixture.at(330)))
    );
    let later = simulate().start(fixture.at(600)).await.unwrap();
    assert_eq!((later.due_earlier, later.queues[0].jobs), (2, 1));
    assert_eq!(later.queues[0].lateness_max, Some(0.seconds()));
    let past = simulate().start(fixture.at(299)).await.unwrap_err();
    assert_eq!(past.kind(), ErrorKind::InvalidInput);
}

impl Fixture {
    async fn limit(&self, flow: Flow) {
        assert!(self.dq.queue("REPORT").unwrap().override_limits(flow).await.unwrap());
    }
}

#[tokio::test]
async fn limits_for_all_processes_are_played() {
    let rate = |text: &str| Flow::UNLIMITED.rate(text.parse().unwrap());
    for (flow, jobs, drained) in [
        (rate("10/1s burst 20"), 600, 58.seconds()),
        (rate("1/1s"), 60, 59.seconds()),
        // Two at once for 10 s each, at most one of them in 2 s.
        (rate("1/2s").max_running(2), 6, 22.seconds()),
        (Flow::UNLIMITED.max_running(2), 10, 40.seconds()),
    ] {
        let fixture = fixture(0).await;
        fixture.limit(flow).await;
        fixture.schedule(std::iter::repeat_n(3_600, jobs)).await;
        let queue = only(fixture.simulate(2.hours(), 100, 10.seconds())).await;
        assert_eq!(queue.drained, Some(fixture.at(3_600) + drained), "{flow}: {queue}");
        assert!(queue.to_string().contains(&format!("jobs with {flow}, late")), "{queue}");
    }
}

#[tokio::test]
async fn a_group_takes_no_more_slots_than_its_limit() {
    let fixture = fixture(0).await;
    fixture.limit(Flow::UNLIMITED.group_max_running(2)).await;
    for group in [&["big"; 9][..], &["small"; 2], &[""; 1]].concat() {
        let job = fixture.dq.schedule::<REPORT>(1).after(1.minutes());
        let job = if group.is_empty() { job } else { job.group(group) };
        assert!(job.await.unwrap().is_stored());
    }
    let queue = only(fixture.simulate(1.hours(), 100, 10.seconds())).await;
    // Five at once; of the big group two in each 10 s.
    assert_eq!((queue.jobs, queue.backlog, queue.lateness_p50), (12, 7, Some(10.seconds())));
    assert_eq!(queue.drained, Some(fixture.at(60 + 40)));
}

#[tokio::test]
async fn a_throttled_queue_is_played_from_its_opening() {
    let fixture = fixture(0).await;
    fixture.schedule([0, 0]).await;
    let wants = [Want::new("REPORT".try_into().unwrap(), 1, 1.minutes())];
    let claim = fixture.store.claim(ClaimParams::new(&wants, 1, "w")).await.unwrap();
    let lease = claim.jobs[0].lease();
    let throttle = Settlement::new(lease, Verdict::Throttle(30.seconds().into()));
    fixture.store.settle(&[throttle]).await.unwrap();
    fixture.limit(Flow::UNLIMITED.rate("10/1s".parse().unwrap())).await;
    let queue = only(fixture.simulate(1.hours(), 2, 1.seconds())).await;
    assert_eq!((queue.jobs, queue.drained), (2, Some(fixture.at(30) + 100.millis())));
    assert_eq!(queue.flow.throttled_until, Some(fixture.at(30)), "as it is now, not at the end");
}

#[tokio::test]
async fn a_simulation_ends_at_the_end_of_all_times() {
    let fixture = fixture(0).await;
    fixture.limit(Flow::UNLIMITED.rate("10/1s".parse().unwrap())).await;
    fixture.schedule([0, 0, 0]).await;
    let queue = only(fixture.simulate(1.hours(), 1, Duration::from_secs(u64::MAX / 1_000))).await;
    assert_eq!((queue.jobs, queue.backlog_at_end), (3, 2));
}

#[tokio::test]
async fn schedules_fire_as_the_clock_changes() {
    for (day, hours, expression, jobs) in [
        (SHORT_DAY, 23, "0 * * * *", 23),
        (SHORT_DAY, 23, "*/30 * * * *", 46),
        (SHORT_DAY, 23, "30 2 * * *", 1),
        (SHORT_DAY, 23, "30 2,14 * * *", 2),
        (LONG_DAY, 25, "*/30 * * * *", 50),
        (LONG_DAY, 25, "30 1 * * *", 1),
    ] {
        // Two days earlier, so that the start is in the future.
        let fixture = fixture(day - 48 * 3_600_000).await;
        fixture.report().cron(expression, "America/New_York").upsert().await.unwrap();
        let simulation = fixture.simulate(hours.hours(), 1, 1.seconds());
        let simulation = simulation.start(Timestamp::from_millis(day));
        assert_eq!(only(simulation).await.jobs, jobs, "{expression} on {day}");
    }
}

#[tokio::test]
async fn occurrences_overlap_as_their_schedule_says() {
    for (overlap, jobs, skipped, latest) in
        [(Overlap::Skip, 5, 4, 0), (Overlap::Allow, 9, 0, 0), (Overlap::QueueOne, 7, 2, 90)]
    {
        let fixture = fixture(0).await;
        fixture.report().overlap(overlap).every(1.minutes()).upsert().await.unwrap();
        let queue = only(fixture.simulate(10.minutes(), 2, 90.seconds())).await;
        assert_eq!((queue.jobs, queue.skipped), (jobs, skipped), "{overlap:?}");
        assert_eq!(queue.lateness_max, Some(latest.seconds()), "{overlap:?}");
    }
}

#[derive(Debug)]
struct Slow {
    store: Arc<MemoryBackend>,
    clock: Arc<VirtualClock>,
}

#[dq_core::async_trait]
impl Layer for Slow {
    fn inner(&self) -> &dyn Backend {
        &*self.store
    }

    async fn before(&self, method: &'static str) -> dq_core::Result<()> {
        if method == "browse" {
            self.clock.advance(10.seconds());
        }
        Ok(())
    }
}

#[tokio::test]
async fn jobs_that_become_due_while_they_are_read_are_played_once() {
    let fixture = fixture(0).await;
    // One is due before the first page of scheduled jobs, one between it and the ready jobs.
    fixture.schedule([5, 15, 3_000]).await;
    let slow = Slow { store: fixture.store.clone(), clock: fixture.clock.clone() };
    let dq = connect(Arc::new(slow), &fixture.clock).await;
    let simulation = dq.simulate(1.hours()).default_concurrency(9);
    assert_eq!(only(simulation.default_run_time(1.seconds())).await.jobs, 3);
}

#[tokio::test]
async fn missed_occurrences_are_caught_up_and_paused_schedules_do_not_fire() {
    let fixture = fixture(0).await;
    let all = fixture.report().every(1.hours()).catch_up(CatchUp::All(2.try_into().unwrap()));
    all.upsert().await.unwrap();
    fixture.clock.advance(210.minutes());
    let simulate = || fixture.simulate(1.hours(), 1, 1.seconds());
    // 2 and 3 o'clock run late, 4 o'clock in time.
    let queue = only(simulate()).await;
    assert_eq!((queue.jobs, queue.lateness_max), (3, Some(90.minutes())));
    fixture.report().pause().await.unwrap();
    assert!(simulate().await.unwrap().queues.is_empty());
}

#[tokio::test]
async fn a_pending_job_of_a_schedule_counts_as_live() {
    let fixture = fixture(0).await;
    fixture.report().every(1.minutes()).upsert().await.unwrap();
    assert!(fixture.report().run_now().await.unwrap().unwrap().is_stored());
    let queue = only(fixture.simulate(2.minutes(), 1, 61.seconds())).await;
    assert_eq!((queue.jobs, queue.skipped), (1, 1));
}

#[tokio::test]
async fn run_times_and_slots_are_those_that_runners_announce() {
    let fixture = fixture(0).await;
    fixture.schedule([60; 3]).await;
    // Five runs of about a second, in a bucket from 896 to 1,024 ms.
    let info = r#"{"format":1,"host":"h","pid":7,"version":"0.1.0","started":0,"stopping":false,
        "concurrency":1,"running":0,"skew_ms":null,"omitted_queues":0,"queues":[{"queue":"REPORT",
        "concurrency":16,"running":0,"lateness":[],"run_time":[35,5]}]}"#;
    fixture.store.announce(Announcement::new("runner", info, 1.hours())).await.unwrap();
    let queue = only(fixture.dq.simulate(1.hours()).default_concurrency(9)).await;
    assert_eq!((queue.concurrency, queue.lateness_max), (1, Some(1_920.millis())));
    let given = fixture.dq.simulate(1.hours()).concurrency("REPORT", 2);
    let queue = only(given.run_time("REPORT", 5.seconds())).await;
    assert_eq!((queue.concurrency, queue.lateness_max), (2, Some(5.seconds())));
}

#[tokio::test]
async fn a_paused_queue_does_not_drain() {
    let fixture = fixture(0).await;
    fixture.schedule([60; 3]).await;
    fixture.dq.queue_of::<REPORT>().unwrap().pause().await.unwrap();
    let queue = only(fixture.simulate(1.hours(), 1, 1.seconds())).await;
    assert_eq!((queue.concurrency, queue.backlog, queue.backlog_at_end), (0, 3, 3));
    assert_eq!((queue.drained, queue.lateness_max), (None, None));
    assert!(queue.to_string().ends_with("paused"), "{queue}");
}

#[tokio::test]
async fn bad_options_and_too_many_jobs_are_refused() {
    let fixture = fixture(0).await;
    fixture.schedule([60; 3]).await;
    let hour = || fixture.dq.simulate(1.hours());
    let known = || fixture.simulate(1.hours(), 1, 1.seconds());
    for (simulation, wanted) in [
        (fixture.dq.simulate(0.seconds()), "window"),
        (fixture.dq.simulate(32.days()), "window"),
        (hour().load(0), "load"),
        (hour().concurrency("REPORT", 0), "concurrency"),
        (hour().run_time("REPORT", 0.seconds()), "run time"),
        (hour().run_time("", 1.seconds()), "queue"),
        (hour().default_concurrency(1), "REPORT"),
        (hour().default_run_time(1.seconds()), "REPORT"),
        (known().max_jobs(2), "more than 2 jobs"),
        (known().load(2).max_jobs(5), "more than 5 jobs"),
    ] {
        let error = simulation.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(wanted), "{wanted}: {error}");
    }
    assert_eq!(only(known().max_jobs(3)).await.jobs, 3);
    fixture.report().every(1.minutes()).upsert().await.unwrap();
    assert!(known().max_jobs(61).await.is_err(), "3 jobs and 59 occurrences");
    assert_eq!(only(known().max_jobs(62)).await.jobs, 62);
}
