//! Limits for all runners of a store: exact, and without polling or a herd at each free place.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_core::{Backend, DurationExt, ErrorKind, Flow, Operation, Outcome, Timestamp};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

use crate::runner::faulty::Faults;
use crate::runner::fixture::{Fixture, Observed, QUEUE, TestHandler};
use crate::runner::log_lines::log_lines;

const RUNNERS: usize = 5;

/// Runs that wait for a permit, and what they count.
struct Runs {
    permits: Semaphore,
    running: AtomicUsize,
    highest: AtomicUsize,
    starts: mpsc::UnboundedSender<Timestamp>,
}

struct Crew {
    fixture: Fixture,
    runs: Arc<Runs>,
    starts: mpsc::UnboundedReceiver<Timestamp>,
    stop: watch::Sender<bool>,
    running: Vec<JoinHandle<dq_core::Result<()>>>,
}

impl Crew {
    /// Starts runners that share a store with these jobs.
    async fn start(settings: QueueSettings, jobs: usize, permits: usize) -> Self {
        let fixture = Fixture::new().await;
        for _ in 0..jobs {
            fixture.schedule("x").await;
        }
        let (sender, starts) = mpsc::unbounded_channel();
        let runs = Arc::new(Runs {
            permits: Semaphore::new(permits),
            running: AtomicUsize::new(0),
            highest: AtomicUsize::new(0),
            starts: sender,
        });
        let (stop, stopped) = watch::channel(false);
        let mut crew = Self { fixture, runs, starts, stop, running: Vec::new() };
        for _ in 0..RUNNERS {
            let runs = Arc::clone(&crew.runs);
            let handler = TestHandler::new(move |job, _| {
                let runs = Arc::clone(&runs);
                async move {
                    let running = runs.running.fetch_add(1, Ordering::SeqCst) + 1;
                    runs.highest.fetch_max(running, Ordering::SeqCst);
                    let _ = runs.starts.send(job.now());
                    runs.permits.acquire().await.unwrap().forget();
                    runs.running.fetch_sub(1, Ordering::SeqCst);
                    Ok(Outcome::Done)
                }
            });
            let runner = crew.fixture.dq.runner().without_linked_handlers();
            let runner = runner.handler(handler.with(settings.clone())).build().unwrap();
            let mut stopped = stopped.clone();
            let shutdown = async move { stopped.wait_for(|stop| *stop).await.map(drop) };
            crew.running.push(tokio::spawn(async move { runner.run_until(shutdown).await }));
        }
        crew
    }

    async fn next_start(&mut self) -> Timestamp {
        let wait = tokio::time::timeout(Duration::from_secs(120), self.starts.recv());
        wait.await.expect("a job starts").unwrap()
    }

    fn claims(&self) -> usize {
        self.fixture.store.calls("claim") as usize
    }

    /// Lets all tasks go on as far as they can without the clock.
    async fn settle_down(&self) {
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
    }

    async fn stop(self) {
        self.stop.send(true).unwrap();
        self.runs.permits.add_permits(1_000);
        for runner in self.running {
            runner.await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn a_limit_holds_over_all_runners_and_a_free_place_wakes_one() {
    let mut crew = Crew::start(QueueSettings::new().max_running(3), 40, 0).await;
    for _ in 0..3 {
        crew.next_start().await;
    }
    crew.settle_down().await;
    assert!(crew.starts.try_recv().is_err(), "three run");

    let before = crew.claims();
    crew.fixture.pass(10.seconds()).await;
    let sweeps = crew.claims() - before;
    assert!(sweeps <= RUNNERS * 11, "{sweeps} claims of {RUNNERS} runners in 10 s");

    let before = crew.claims();
    crew.runs.permits.add_permits(1);
    crew.next_start().await;
    crew.settle_down().await;
    let claims = crew.claims() - before;
    assert!(claims <= 3, "{claims} claims for one free place");

    crew.runs.permits.add_permits(39);
    for _ in 0..36 {
        crew.next_start().await;
    }
    crew.settle_down().await;
    assert_eq!(crew.fixture.done().await, 40);
    assert_eq!(crew.runs.highest.load(Ordering::SeqCst), 3);
    crew.stop().await;
}

#[tokio::test]
async fn a_rate_holds_over_all_runners_and_each_start_takes_few_claims() {
    let settings = QueueSettings::new().rate("10/1s".parse().unwrap());
    let mut crew = Crew::start(settings, 30, 1_000).await;
    let mut starts = vec![crew.next_start().await];
    crew.settle_down().await;
    let before = crew.claims();
    crew.fixture.pass(3.seconds()).await;
    let claims = crew.claims() - before;
    starts.extend(std::iter::from_fn(|| crew.starts.try_recv().ok()));
    assert_eq!(starts.len(), 30, "ten a second");
    let is_spaced = |pair: &[Timestamp]| pair[1].since(pair[0]) >= 100.millis();
    assert!(starts.windows(2).all(is_spaced), "{starts:?}");
    // A claim for each start, one that learns of the next, and a sweep of each runner in a second.
    assert!(claims <= 30 * 2 + RUNNERS * 4, "{claims} claims for 30 starts");
    crew.stop().await;
}

/// No free place waits for a sweep: the clock does not reach one.
#[tokio::test]
async fn each_free_place_is_taken_by_whoever_has_a_slot() {
    let one_slot = QueueSettings::new().concurrency(1);
    for (settings, at_once) in [
        (one_slot.clone().max_running(2), 2),
        (one_slot.max_running(RUNNERS as u32), RUNNERS),
        (QueueSettings::new().max_running(7).rate("10000/1s burst 10000".parse().unwrap()), 7),
    ] {
        let mut crew = Crew::start(settings, 100, 0).await;
        for _ in 0..at_once {
            crew.next_start().await;
        }
        for _ in at_once..100 {
            crew.runs.permits.add_permits(1);
            crew.next_start().await;
        }
        crew.runs.permits.add_permits(at_once);
        crew.settle_down().await;
        assert_eq!(crew.fixture.done().await, 100);
        assert_eq!(crew.runs.highest.load(Ordering::SeqCst), at_once);
        crew.stop().await;
    }
}

/// The only place is free before the rate's next turn, or before the next job is due.
#[tokio::test]
async fn a_runner_waits_for_the_turn_or_the_due_time_after_a_place_is_free() {
    let settings = QueueSettings::new().max_running(1).rate("10/1s".parse().unwrap());
    let mut crew = Crew::start(settings, 9, 1_000).await;
    let mut starts = vec![crew.next_start().await];
    crew.settle_down().await;
    crew.fixture.pass(800.millis()).await;
    starts.extend(std::iter::from_fn(|| crew.starts.try_recv().ok()));
    assert_eq!(starts.len(), 9, "{starts:?}");
    crew.stop().await;

    let mut crew = Crew::start(QueueSettings::new().max_running(1), 1, 0).await;
    let payload = serde_json::to_vec("x").unwrap();
    let later = crew.fixture.queue().schedule(payload, "application/json").after(100.millis());
    assert!(later.await.unwrap().is_stored());
    crew.next_start().await;
    crew.settle_down().await;
    crew.fixture.pass(300.millis()).await;
    crew.runs.permits.add_permits(2);
    crew.next_start().await;
    crew.settle_down().await;
    assert_eq!(crew.fixture.done().await, 2);
    crew.stop().await;
}

#[tokio::test]
async fn an_operators_limit_counts_at_once() {
    let mut crew = Crew::start(QueueSettings::new().max_running(1), 9, 0).await;
    crew.next_start().await;
    crew.settle_down().await;
    crew.fixture.queue().override_limits(Flow::UNLIMITED.max_running(4)).await.unwrap();
    for _ in 0..3 {
        crew.next_start().await;
    }
    crew.settle_down().await;
    assert!(crew.starts.try_recv().is_err(), "four run");
    assert!(crew.fixture.queue().remove_override().await.unwrap());
    crew.runs.permits.add_permits(3);
    crew.settle_down().await;
    assert!(crew.starts.try_recv().is_err(), "one runs, as declared");
    crew.stop().await;
}

#[tokio::test]
async fn the_runner_that_starts_last_declares_the_limits() {
    let mut fixture = Fixture::new().await;
    let flow = async |fixture: &Fixture| fixture.queue().stats().await.unwrap().flow.declared;
    for (settings, declared) in [
        (QueueSettings::new().max_running(3), Flow::UNLIMITED.max_running(3)),
        (QueueSettings::new().max_running(5), Flow::UNLIMITED.max_running(5)),
        (QueueSettings::new(), Flow::UNLIMITED),
    ] {
        fixture.schedule("x").await;
        fixture.run(TestHandler::done().with(settings));
        fixture.wait_settled().await;
        assert_eq!(flow(&fixture).await, declared);
        fixture.stop().await;
    }
}

#[tokio::test]
async fn a_runner_is_told_once_that_another_process_has_replaced_its_limits() {
    let mut fixture = Fixture::new().await;
    let own = Flow::UNLIMITED.max_running(3);
    fixture.schedule("x").await;
    fixture.run(TestHandler::done().with(QueueSettings::new().max_running(3)));
    fixture.wait_settled().await;
    let calls = |fixture: &Fixture| fixture.store.calls("stats");
    for (latest, is_told) in [
        (own, false),
        (Flow::UNLIMITED.max_running(5), true),
        (Flow::UNLIMITED.max_running(5), false),
        (Flow::UNLIMITED, true),
        (own, false),
        (Flow::UNLIMITED, true),
    ] {
        let queue = &QUEUE.try_into().unwrap();
        let declare = Operation::DeclareFlow { queue, flow: latest };
        Backend::operate(&**fixture.dq.backend(), declare).await.unwrap();
        let before = calls(&fixture);
        fixture.pass(10.minutes()).await;
        assert_eq!(calls(&fixture) - before, 1, "it is read with what is read anyway");
        let told = fixture.observed().into_iter();
        let told: Vec<_> = told.filter(|it| matches!(it, Observed::LimitsReplaced(..))).collect();
        let expected = is_told.then_some(Observed::LimitsReplaced(own, latest));
        assert_eq!(told, expected.into_iter().collect::<Vec<_>>());
    }
    let lines = log_lines();
    assert!(lines.contains("own=max_running 3 latest=max_running 5"), "{lines}");
    fixture.stop().await;
}

#[tokio::test]
async fn a_store_without_groups_refuses_only_their_limit() {
    let fixture = Fixture::faulty(Faults { lacks_groups: true, ..Faults::default() }).await;
    let build = |settings| {
        let runner = fixture.dq.runner().without_linked_handlers();
        runner.handler(TestHandler::done().with(settings)).build()
    };
    assert!(build(QueueSettings::new().max_running(3)).is_ok());
    let error = build(QueueSettings::new().group_max_running(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("group_max_running 2"), "{error}");
}

#[tokio::test]
async fn a_store_without_limits_refuses_them() {
    let fixture = Fixture::faulty(Faults { lacks_flow: true, ..Faults::default() }).await;
    let runner = fixture.dq.runner().without_linked_handlers();
    let limited = TestHandler::done().with(QueueSettings::new().max_running(3));
    let error = runner.handler(limited).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("remove `max_running`, `group_max_running` and `rate`"),
        "{error}"
    );
    let error = fixture.queue().override_limits(Flow::UNLIMITED).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = Fixture::new().await.queue().override_limits(Flow::UNLIMITED.max_running(0)).await;
    assert!(error.unwrap_err().to_string().contains("to stop the queue, pause it"));
}

#[tokio::test]
async fn a_throttle_that_the_store_cannot_keep_is_a_failure() {
    let mut fixture = Fixture::faulty(Faults { lacks_flow: true, ..Faults::default() }).await;
    fixture.schedule("x").await;
    fixture.run(TestHandler::new(async |_, _| Ok(Outcome::throttle(5.seconds()))));
    assert_eq!(fixture.wait_finished().await, "Retry");
    fixture.stop_by(Duration::from_secs(1)).await;
}
