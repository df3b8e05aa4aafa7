//! A background runner, its virtual clock, and its events.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_core::{
    Backend, DeadKind, DelayHandler, Dq, Entropy, Event, HandlerResult, JobContext, LatenessCause,
    MemoryBackend, Outcome, QueueCode, QueueStats, Result, RunnerBuilder, Settled, VirtualClock,
};
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::runner::faulty::{Faults, FaultyStore};
use crate::runner::log_lines;

pub(crate) const QUEUE: &str = "Q";

/// A runner event, reduced to data the tests need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Observed {
    Claimed(usize),
    Started {
        attempt: u32,
        deliveries: u32,
    },
    TimeoutExceeded,
    GraceExceeded,
    /// Name of the verdict's variant, such as `Retry`.
    Finished(String),
    Dead(DeadKind),
    Settled(Settled),
    /// A repeated settlement, after an unknown outcome.
    SettledBefore(Settled),
    Renewed,
    LeaseLost,
    StoreFailed,
    LatenessMissed(Option<LatenessCause>),
    LatenessRecovered,
    Finding(&'static str),
    Stopping,
    Stopped,
}

pub(crate) const FIRST: Observed = Observed::Started { attempt: 1, deliveries: 1 };

pub(crate) struct Fixture {
    pub(crate) dq: Dq,
    pub(crate) clock: Arc<VirtualClock>,
    observed: mpsc::UnboundedReceiver<Observed>,
    sender: mpsc::UnboundedSender<Observed>,
    claimed: Arc<Notify>,
    stop: Option<oneshot::Sender<()>>,
    running: Option<JoinHandle<Result<()>>>,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let clock = Arc::new(VirtualClock::default());
        let backend = Arc::new(MemoryBackend::new(clock.clone()));
        Self::with_backend(backend, clock).await
    }

    /// Has a job, and a runner with this handler.
    pub(crate) async fn running(handler: impl DelayHandler) -> Self {
        let mut fixture = Self::new().await;
        fixture.schedule("x").await;
        fixture.start(|runner| runner.handler(handler));
        fixture
    }

    pub(crate) async fn faulty(faults: Faults) -> Self {
        let clock = Arc::new(VirtualClock::default());
        Self::with_backend(FaultyStore::new(&clock, faults), clock).await
    }

    pub(crate) async fn with_backend(backend: Arc<dyn Backend>, clock: Arc<VirtualClock>) -> Self {
        let builder = Dq::builder().backend(backend).clock(clock.clone());
        Self::with_client(builder.entropy(Entropy::seeded(1)).connect().await.unwrap(), clock)
    }

    pub(crate) fn with_client(dq: Dq, clock: Arc<VirtualClock>) -> Self {
        log_lines::collect();
        let (sender, observed) = mpsc::unbounded_channel();
        let claimed = Arc::default();
        Self { dq, clock, observed, sender, claimed, stop: None, running: None }
    }

    /// Starts a runner; `change` adds handlers and settings.
    pub(crate) fn start(&mut self, change: impl FnOnce(RunnerBuilder) -> RunnerBuilder) {
        let (sender, claimed) = (self.sender.clone(), Arc::clone(&self.claimed));
        let builder =
            self.dq.runner().without_linked_handlers().observer(move |event: &Event<'_>| {
                let observed = match event {
                    Event::StoreCalled { operation: "claim", .. } => return claimed.notify_one(),
                    Event::Claimed { jobs, .. } => Observed::Claimed(*jobs),
                    Event::Started(job) => {
                        Observed::Started { attempt: job.attempt(), deliveries: job.deliveries() }
                    }
                    Event::TimeoutExceeded(_) => Observed::TimeoutExceeded,
                    Event::GraceExceeded(_) => Observed::GraceExceeded,
                    Event::Finished { verdict, .. } => {
                        let verdict = format!("{verdict:?}");
                        Observed::Finished(verdict.split(['(', ' ']).next().unwrap().to_owned())
                    }
                    Event::Dead { reason, .. } => Observed::Dead(reason.kind),
                    Event::Settled { settled, repeated: true, .. } => {
                        Observed::SettledBefore(*settled)
                    }
                    Event::Settled { settled, .. } => Observed::Settled(*settled),
                    Event::Renewed { .. } => Observed::Renewed,
                    Event::LeaseLost(_) => Observed::LeaseLost,
                    Event::StoreFailed(_) => Observed::StoreFailed,
                    Event::LatenessMissed(status) => Observed::LatenessMissed(status.cause),
                    Event::LatenessRecovered(_) => Observed::LatenessRecovered,
                    Event::Finding(finding) => Observed::Finding(finding.code),
                    Event::Stopping { .. } => Observed::Stopping,
                    Event::Stopped => Observed::Stopped,
                    _ => return,
                };
                // The test may have ended.
                let _ = sender.send(observed);
            });
        let runner = change(builder).build().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            let _ = stopped.await;
        };
        self.running = Some(tokio::spawn(runner.run_until(shutdown)));
        self.stop = Some(stop);
    }

    /// Waits for a claim, even without jobs.
    pub(crate) async fn wait_claimed(&self) {
        let wait = tokio::time::timeout(Duration::from_secs(120), self.claimed.notified());
        wait.await.expect("the runner claims");
    }

    pub(crate) async fn next(&mut self) -> Observed {
        let wait = tokio::time::timeout(Duration::from_secs(120), self.observed.recv());
        wait.await.expect("the runner sends an event").expect("the fixture holds a sender")
    }

    pub(crate) fn observed(&mut self) -> Vec<Observed> {
        std::iter::from_fn(|| self.observed.try_recv().ok()).collect()
    }

    pub(crate) async fn wait_for(&mut self, wanted: &Observed) {
        while self.next().await != *wanted {}
    }

    /// Waits for a handler to end; returns the name of the verdict's variant.
    pub(crate) async fn wait_finished(&mut self) -> String {
        loop {
            if let Observed::Finished(verdict) = self.next().await {
                return verdict;
            }
        }
    }

    pub(crate) async fn wait_settled(&mut self) -> Settled {
        loop {
            if let Observed::Settled(settled) = self.next().await {
                return settled;
            }
        }
    }

    /// Advances the clock in steps until this event; returns the events before it.
    pub(crate) async fn advance_until(
        &mut self,
        step: Duration,
        wanted: &Observed,
    ) -> Vec<Observed> {
        let mut before = Vec::new();
        for _ in 0..10_000 {
            while let Ok(observed) = self.observed.try_recv() {
                if observed == *wanted {
                    return before;
                }
                before.push(observed);
            }
            self.clock.advance(step);
            tokio::task::yield_now().await;
        }
        panic!("the runner never sent {wanted:?}");
    }

    /// Advances the clock in steps small enough for all tasks to keep up.
    pub(crate) async fn pass(&self, time: Duration) {
        for _ in 0..time.as_millis() / 100 {
            self.clock.advance(Duration::from_millis(100));
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
    }

    pub(crate) fn request_stop(&mut self) {
        self.stop.take().expect("it was started").send(()).expect("it is running");
    }

    pub(crate) async fn join(&mut self) -> Result<()> {
        self.running.take().expect("it was started").await.expect("it does not panic")
    }

    pub(crate) async fn abort(&mut self) {
        let running = self.running.take().expect("it was started");
        running.abort();
        assert!(running.await.expect_err("it was running").is_cancelled());
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.running.as_ref().is_some_and(JoinHandle::is_finished)
    }

    pub(crate) async fn stop(&mut self) {
        self.request_stop();
        self.join().await.unwrap();
    }

    /// Stops the runner while time passes in these steps.
    pub(crate) async fn stop_by(&mut self, step: Duration) {
        self.request_stop();
        self.advance_until(step, &Observed::Stopped).await;
        self.join().await.unwrap();
    }

    pub(crate) async fn schedule(&self, payload: &str) {
        let payload = serde_json::to_vec(payload).unwrap();
        let queue = self.dq.queue(QUEUE).unwrap();
        assert!(queue.schedule(payload, "application/json").await.unwrap().is_stored());
    }

    /// Returns the queue's counts; fails if a job was lost or doubled.
    pub(crate) async fn stats(&self) -> QueueStats {
        let stats = self.dq.queue(QUEUE).unwrap().stats().await.unwrap();
        assert_eq!(stats.adds_up(), Some(true), "{stats:?}");
        stats
    }
}

type Run = dyn Fn(JobContext, String) -> BoxFuture<'static, HandlerResult> + Send + Sync;

pub(crate) struct TestHandler {
    queue: &'static str,
    run: Box<Run>,
    settings: QueueSettings,
}

impl TestHandler {
    pub(crate) fn new<F>(run: impl Fn(JobContext, String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        let run = move |job, payload| -> BoxFuture<'static, HandlerResult> {
            Box::pin(run(job, payload))
        };
        Self { queue: QUEUE, run: Box::new(run), settings: QueueSettings::default() }
    }

    pub(crate) fn done() -> Self {
        Self::new(async |_, _| Ok(Outcome::Done))
    }

    pub(crate) fn hangs() -> Self {
        Self::new(async |_, _| std::future::pending().await)
    }

    pub(crate) fn of_queue(self, queue: &'static str) -> Self {
        Self { queue, ..self }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut QueueSettings)) -> Self {
        change(&mut self.settings);
        self
    }
}

impl DelayHandler for TestHandler {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        self.queue
    }

    fn settings(&self) -> QueueSettings {
        self.settings.clone()
    }

    async fn handle(&self, job: JobContext, payload: String) -> HandlerResult {
        (self.run)(job, payload).await
    }
}

pub(crate) struct BlockingHandler {
    settings: QueueSettings,
    results: Mutex<std::sync::mpsc::Receiver<HandlerResult>>,
    runs: Arc<Runs>,
}

#[derive(Debug, Default)]
pub(crate) struct Runs {
    running: AtomicUsize,
    highest: AtomicUsize,
}

impl Runs {
    pub(crate) fn count(self: &Arc<Self>) -> Running {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.highest.fetch_max(running, Ordering::SeqCst);
        Running(Arc::clone(self))
    }

    pub(crate) fn highest(&self) -> usize {
        self.highest.load(Ordering::SeqCst)
    }
}

pub(crate) struct Running(Arc<Runs>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl BlockingHandler {
    pub(crate) fn new(runs: &Arc<Runs>) -> (Self, std::sync::mpsc::Sender<HandlerResult>) {
        let (sender, results) = std::sync::mpsc::channel();
        let (settings, runs) = (QueueSettings::default(), Arc::clone(runs));
        (Self { settings, results: Mutex::new(results), runs }, sender)
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut QueueSettings)) -> Self {
        change(&mut self.settings);
        self
    }
}

impl DelayHandler for BlockingHandler {
    type Payload = String;
    const BLOCKING: bool = true;

    fn code(&self) -> impl QueueCode {
        QUEUE
    }

    fn settings(&self) -> QueueSettings {
        self.settings.clone()
    }

    async fn handle(&self, _job: JobContext, _payload: String) -> HandlerResult {
        let _running = self.runs.count();
        // Fails if the test has dropped the sender.
        self.results.lock().unwrap().recv()?
    }
}
