//! Priorities and reserves: which queue gets a scarce slot.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::config::{Config, QueueSettings};
use dq_core::{Dq, DurationExt, Entropy, ErrorKind, Outcome, Priority, RunnerBuilder};
use tokio::sync::{mpsc, oneshot};

use crate::runner::fixture::{Fixture, TestHandler, settle_down};

const URGENT: &str = "URGENT";
const BULK: &str = "BULK";

type Running = Arc<Mutex<Vec<(&'static str, oneshot::Sender<()>)>>>;

/// A runner whose jobs run until the test ends them.
struct Crew {
    fixture: Fixture,
    running: Running,
    started: mpsc::UnboundedSender<&'static str>,
    starts: mpsc::UnboundedReceiver<&'static str>,
}

impl Crew {
    async fn new() -> Self {
        let (started, starts) = mpsc::unbounded_channel();
        Self { fixture: Fixture::new().await, running: Arc::default(), started, starts }
    }

    fn handler(&self, queue: &'static str, settings: QueueSettings) -> TestHandler {
        let (running, started) = (Arc::clone(&self.running), self.started.clone());
        let handler = TestHandler::new(move |_, _| {
            let (ends, ended) = oneshot::channel();
            running.lock().unwrap().push((queue, ends));
            started.send(queue).unwrap();
            async move {
                ended.await?;
                Ok(Outcome::Done)
            }
        });
        handler.of_queue(queue).with(settings.timeout(Duration::MAX))
    }

    /// No sweep finds a job: the runner has to know when to claim.
    fn start(&mut self, slots: usize, queues: &[(&'static str, QueueSettings)]) {
        let handlers: Vec<_> = queues.iter().map(|(q, it)| self.handler(q, it.clone())).collect();
        self.fixture.start(|runner| {
            let runner = runner.concurrency(slots).sweep(60.seconds());
            handlers.into_iter().fold(runner, RunnerBuilder::handler)
        });
    }

    async fn schedule(&self, queue: &str, jobs: usize, delay: Duration) {
        let queue = self.fixture.dq.queue(queue).unwrap();
        for _ in 0..jobs {
            let job = queue.schedule(r#""x""#, "application/json").after(delay);
            assert!(job.await.unwrap().is_stored());
        }
    }

    /// Returns the queues of the jobs that have started.
    async fn starts(&mut self) -> Vec<&'static str> {
        settle_down().await;
        std::iter::from_fn(|| self.starts.try_recv().ok()).collect()
    }

    /// Ends a job that has taken long enough that none is claimed ahead.
    fn end(&self, queue: &str) {
        self.fixture.clock.advance(10.millis());
        self.end_at_once(queue);
    }

    fn end_at_once(&self, queue: &str) {
        let mut running = self.running.lock().unwrap();
        let job = running.iter().position(|(of, _)| *of == queue).expect("a job runs");
        running.remove(job).1.send(()).unwrap();
    }

    fn running(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for (queue, _) in &*self.running.lock().unwrap() {
            *counts.entry(*queue).or_default() += 1;
        }
        counts
    }

    async fn ready(&self, queue: &str) -> u64 {
        self.fixture.dq.queue(queue).unwrap().stats().await.unwrap().ready
    }

    async fn stop(mut self) {
        self.fixture.abort().await;
    }
}

fn settings() -> QueueSettings {
    QueueSettings::new()
}

fn level(priority: Priority) -> QueueSettings {
    settings().priority(priority)
}

#[tokio::test]
async fn an_urgent_job_takes_the_next_free_slot_before_older_jobs() {
    for (urgent, bulk) in [
        (level(Priority::High), settings()),
        (settings(), level(Priority::Low)),
        (level(Priority::High), level(Priority::Low)),
    ] {
        let mut crew = Crew::new().await;
        crew.schedule(BULK, 10, Duration::ZERO).await;
        crew.start(2, &[(BULK, bulk), (URGENT, urgent)]);
        assert_eq!(crew.starts().await, [BULK, BULK]);
        crew.fixture.clock.advance(1.seconds());
        crew.schedule(URGENT, 3, Duration::ZERO).await;
        assert!(crew.starts().await.is_empty(), "no slot is free");
        for (ended, started) in [(BULK, URGENT), (BULK, URGENT), (URGENT, URGENT), (URGENT, BULK)] {
            crew.end(ended);
            assert_eq!(crew.starts().await, [started]);
        }
        crew.stop().await;
    }
}

/// Short jobs are claimed ahead of the slots, but none may take the slot that an urgent job needs.
#[tokio::test]
async fn no_short_job_is_claimed_ahead_of_an_urgent_one() {
    let mut crew = Crew::new().await;
    crew.schedule(BULK, 20, Duration::ZERO).await;
    crew.start(2, &[(BULK, settings()), (URGENT, level(Priority::High))]);
    for _ in 0..10 {
        crew.starts().await;
        crew.end_at_once(BULK);
    }
    crew.starts().await;
    crew.schedule(URGENT, 1, Duration::ZERO).await;
    assert!(crew.starts().await.is_empty(), "no slot is free");
    crew.end_at_once(BULK);
    assert_eq!(crew.starts().await, [URGENT]);
    crew.stop().await;
}

#[tokio::test]
async fn a_reserve_lets_a_job_start_at_once_and_no_other_queue_uses_it() {
    let mut crew = Crew::new().await;
    crew.schedule(BULK, 10, Duration::ZERO).await;
    crew.start(4, &[(BULK, settings()), (URGENT, settings().reserve(2))]);
    assert_eq!(crew.starts().await, [BULK, BULK]);
    crew.end(BULK);
    assert_eq!(crew.starts().await, [BULK]);

    crew.schedule(URGENT, 1, Duration::ZERO).await;
    assert_eq!(crew.starts().await, [URGENT]);
    crew.schedule(URGENT, 1, 1.millis()).await;
    assert!(crew.starts().await.is_empty(), "it is not due");
    crew.fixture.clock.advance(1.millis());
    assert_eq!(crew.starts().await, [URGENT], "it starts when it is due");
    crew.schedule(URGENT, 3, Duration::ZERO).await;
    assert!(crew.starts().await.is_empty(), "the reserve is used up");
    for (ended, started) in [(URGENT, URGENT), (URGENT, URGENT)] {
        crew.end(ended);
        assert_eq!(crew.starts().await, [started]);
    }
    crew.end(URGENT);
    crew.end(URGENT);
    assert_eq!(crew.starts().await, [URGENT], "the other slot waits for its queue");
    crew.schedule(URGENT, 1, Duration::ZERO).await;
    assert_eq!(crew.starts().await, [URGENT]);
    assert_eq!(crew.running(), BTreeMap::from([(BULK, 2), (URGENT, 2)]));
    crew.stop().await;
}

#[tokio::test]
async fn a_queue_uses_its_reserve_before_shared_slots() {
    let mut crew = Crew::new().await;
    crew.start(4, &[(BULK, settings()), (URGENT, settings().reserve(2).concurrency(3))]);
    crew.schedule(URGENT, 5, Duration::ZERO).await;
    assert_eq!(crew.starts().await, [URGENT; 3], "two of the reserve, and one shared");
    crew.schedule(BULK, 5, Duration::ZERO).await;
    assert_eq!(crew.starts().await, [BULK]);
    crew.stop().await;
}

#[tokio::test]
async fn a_backlog_starves_lower_levels_but_no_reserve() {
    for (bulk, done) in [(level(Priority::Low), 0), (level(Priority::Low).reserve(1), 10)] {
        let mut crew = Crew::new().await;
        crew.schedule(BULK, 10, Duration::ZERO).await;
        crew.schedule(URGENT, 100, Duration::ZERO).await;
        crew.start(2, &[(BULK, bulk), (URGENT, level(Priority::High))]);
        for _ in 0..10 {
            crew.starts().await;
            let running = crew.running();
            running.into_keys().for_each(|queue| crew.end(queue));
        }
        settle_down().await;
        let stats = crew.fixture.dq.queue(BULK).unwrap().stats().await.unwrap();
        assert_eq!(stats.totals.unwrap().done, done);
        crew.stop().await;
    }
}

#[tokio::test]
async fn an_idle_reserve_costs_no_claim_for_each_freed_slot() {
    let mut crew = Crew::new().await;
    crew.schedule(BULK, 50, Duration::ZERO).await;
    crew.start(4, &[(BULK, settings()), (URGENT, settings().reserve(1))]);
    assert_eq!(crew.starts().await, [BULK; 3]);
    let before = crew.fixture.store.calls("claim");
    for _ in 0..40 {
        crew.end(BULK);
        assert_eq!(crew.starts().await, [BULK]);
    }
    let claims = crew.fixture.store.calls("claim") - before;
    assert!(claims <= 42, "{claims} claims for 40 slots");
    crew.stop().await;
}

#[tokio::test]
async fn a_reserve_is_used_soon_after_a_failed_claim_or_a_wrong_due_time() {
    let mut crew = Crew::new().await;
    crew.schedule(BULK, 10, Duration::ZERO).await;
    crew.start(3, &[(BULK, settings()), (URGENT, settings().reserve(1))]);
    crew.schedule(URGENT, 2, Duration::ZERO).await;
    assert_eq!(crew.starts().await.len(), 3);
    crew.fixture.store.change(|faults| faults.is_away = true);
    crew.end(URGENT);
    assert!(crew.starts().await.is_empty(), "the claim has failed");
    crew.fixture.store.change(|faults| faults.is_away = false);
    crew.fixture.clock.advance(100.millis());
    assert_eq!(crew.starts().await, [URGENT]);
    crew.stop().await;

    let mut crew = Crew::new().await;
    crew.fixture.store.change(|faults| faults.reports_ghost = true);
    crew.schedule(BULK, 10, Duration::ZERO).await;
    crew.schedule(URGENT, 1, 200.millis()).await;
    crew.start(3, &[(BULK, settings()), (URGENT, settings().reserve(1))]);
    assert_eq!(crew.starts().await, [BULK, BULK]);
    for _ in 0..22 {
        crew.fixture.clock.advance(10.millis());
        settle_down().await;
    }
    assert_eq!(crew.starts().await, [URGENT]);
    let claims = crew.fixture.store.calls("claim");
    assert!(claims <= 30, "{claims} claims");
    crew.stop().await;
}

/// After each of many random steps: no limit is exceeded, no slot is idle that a due job could use,
/// and no job has started before one of a higher level.
#[tokio::test]
async fn the_slots_of_a_runner_are_divided_exactly() {
    const QUEUES: [&str; 4] = ["A", "B", "C", "D"];
    const SEEDS: u64 = 5;
    const LEVELS: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];
    for seed in 0..SEEDS {
        let random = Entropy::seeded(seed);
        let below = |n: usize| (random.bits() % n as u128) as usize;
        let mut crew = Crew::new().await;
        let slots = 2 + below(7);
        let ends_at_once = seed % 2 == 1;
        let mut unreserved = slots - 1;
        let queues = QUEUES.map(|queue| {
            let concurrency = 1 + below(6);
            let reserve = below(2) * below(1 + concurrency.min(unreserved));
            unreserved -= reserve;
            (queue, concurrency, reserve, LEVELS[below(3)])
        });
        let of_queue = queues.map(|(queue, concurrency, reserve, priority)| {
            let settings = level(priority).concurrency(concurrency);
            (queue, if reserve > 0 { settings.reserve(reserve) } else { settings })
        });
        crew.start(slots, &of_queue);
        for step in 0..150 {
            match below(3) {
                0 => {
                    let delay = Duration::from_millis([0, 0, 7, 40][below(4)]);
                    crew.schedule(QUEUES[below(4)], 1 + below(4), delay).await;
                }
                _ => {
                    let running: Vec<_> = crew.running().into_keys().collect();
                    match running.get(below(4)) {
                        Some(queue) if ends_at_once => crew.end_at_once(queue),
                        Some(queue) => crew.end(queue),
                        None => crew.fixture.clock.advance(5.millis()),
                    }
                }
            }
            let mut starts = crew.starts().await;
            if ends_at_once {
                // Gives back the jobs claimed ahead that have found no slot.
                crew.fixture.clock.advance(10.millis());
                starts = crew.starts().await;
            }
            let running = crew.running();
            let used = |queue: &str| running.get(queue).copied().unwrap_or_default();
            let unshared: usize =
                queues.iter().map(|(q, _, reserve, _)| used(q).max(*reserve)).sum();
            let place = format!("seed {seed}, step {step}: {running:?} of {slots}, {queues:?}");
            assert!(unshared <= slots, "{place}");
            for (queue, concurrency, reserve, priority) in queues {
                assert!(used(queue) <= concurrency, "{place}");
                let has_own = used(queue) < reserve;
                let could_start = used(queue) < concurrency && (has_own || unshared < slots);
                let ready = crew.ready(queue).await;
                assert!(ready == 0 || !could_start, "{ready} jobs of {queue} wait; {place}");
                let waits_for_slot = ready > 0 && used(queue) < concurrency;
                let took_slot = |(other, _, reserve, lower): &(&str, usize, usize, Priority)| {
                    *lower > priority && starts.contains(other) && used(other) > *reserve
                };
                let overtaken = waits_for_slot && queues.iter().any(took_slot);
                assert!(!overtaken, "{starts:?} have started before {queue}; {place}");
            }
        }
        crew.stop().await;
    }
}

#[tokio::test]
async fn reserves_that_do_not_fit_are_refused_by_name() {
    let fixture = Fixture::new().await;
    let build = |slots, [first, second]: [QueueSettings; 2]| {
        let runner = fixture.dq.runner().without_linked_handlers().concurrency(slots);
        let runner = runner.handler(TestHandler::done().with(first));
        runner.handler(TestHandler::done().of_queue(BULK).with(second)).build()
    };
    for (slots, queues, expected) in [
        (
            5,
            [settings().reserve(4), settings().reserve(2)],
            "6 reserved slots are more than it has",
        ),
        (5, [settings().reserve(4), settings().reserve(2)], "BULK 2, Q 4"),
        (4, [settings().reserve(4), settings()], "4 reserved slots leave none to queue BULK"),
        (
            9,
            [settings().reserve(17), settings()],
            "queue Q: reserve is 17, but the queue's concurrency is 16",
        ),
    ] {
        let error = build(slots, queues).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.message().contains(expected), "{error}");
        assert!(error.remedy_text().is_some());
    }
    assert!(build(6, [settings().reserve(4), settings().reserve(2)]).is_ok());

    let config = "[backend]\ntype = \"memory\"\n[queues.Q]\nreserve = 3";
    let dq = Dq::builder().config(Config::from_toml(config).unwrap()).connect().await.unwrap();
    let runner = dq.runner().without_linked_handlers().concurrency(2);
    let error = runner.handler(TestHandler::done().with(settings().reserve(1))).build();
    let error = error.unwrap_err();
    assert!(
        error.message().contains("3 reserved slots"),
        "the file overrides the handler: {error}"
    );
}
