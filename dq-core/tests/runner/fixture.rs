//! A background runner on a virtual clock, its store, and its events.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_core::{
    Backend, ClaimParams, DeadKind, DelayHandler, Dq, Entropy, Event, Flow, HandlerResult,
    JobContext, JobState, JobView, LatenessCause, LeasedJob, Outcome, QueueCode, QueueHandle,
    QueueStats, Result, RunnerBuilder, Settled, VirtualClock, Want,
};
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::runner::faulty::{Faults, FaultyStore, OpenStore};
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
    Finished(String),
    Dead(DeadKind),
    Settled(Settled),
    SettledBefore(Settled),
    Renewed,
    LeaseLost,
    StoreFailed,
    LatenessMissed(Option<LatenessCause>),
    LatenessRecovered,
    /// This process's limits, and the latest.
    LimitsReplaced(Flow, Flow),
    Finding(&'static str),
    Stopping,
    Stopped,
}

pub(crate) const FIRST: Observed = Observed::Started { attempt: 1, deliveries: 1 };

pub(crate) const ACCEPTED: Observed = Observed::Settled(Settled::Accepted);

pub(crate) fn finished(verdict: &str) -> Observed {
    Observed::Finished(verdict.to_owned())
}

impl Observed {
    fn of(event: &Event<'_>) -> Option<Self> {
        Some(match event {
            Event::Claimed { jobs, .. } => Self::Claimed(*jobs),
            Event::Started(job) => {
                Self::Started { attempt: job.attempt(), deliveries: job.deliveries() }
            }
            Event::TimeoutExceeded(_) => Self::TimeoutExceeded,
            Event::GraceExceeded(_) => Self::GraceExceeded,
            Event::Finished { verdict, .. } => {
                finished(format!("{verdict:?}").split(['(', ' ']).next().unwrap())
            }
            Event::Dead { reason, .. } => Self::Dead(reason.kind),
            Event::Settled { settled, repeated: true, .. } => Self::SettledBefore(*settled),
            Event::Settled { settled, .. } => Self::Settled(*settled),
            Event::Renewed { .. } => Self::Renewed,
            Event::LeaseLost(_) => Self::LeaseLost,
            Event::StoreFailed(_) => Self::StoreFailed,
            Event::LatenessMissed(status) => Self::LatenessMissed(status.cause),
            Event::LatenessRecovered(_) => Self::LatenessRecovered,
            Event::LimitsReplaced { own, latest, .. } => Self::LimitsReplaced(**own, **latest),
            Event::Finding(finding) => Self::Finding(finding.code),
            Event::Stopping { .. } => Self::Stopping,
            Event::Stopped => Self::Stopped,
            _ => return None,
        })
    }
}

pub(crate) struct Fixture {
    pub(crate) dq: Dq,
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) clock: Arc<VirtualClock>,
    observed: mpsc::UnboundedReceiver<Observed>,
    sender: mpsc::UnboundedSender<Observed>,
    stop: Option<oneshot::Sender<()>>,
    running: Option<JoinHandle<Result<()>>>,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::faulty(Faults::default()).await
    }

    pub(crate) async fn faulty(faults: Faults) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let store = FaultyStore::new(&clock, &clock, faults);
        Self::over(store, clock).await
    }

    /// The store has its own clock, which is the second value.
    pub(crate) async fn with_store_clock(faults: Faults) -> (Self, Arc<VirtualClock>) {
        let [clock, store_clock] = [(); 2].map(|()| Arc::new(VirtualClock::default()));
        let store = FaultyStore::new(&clock, &store_clock, faults);
        (Self::over(store, clock).await, store_clock)
    }

    pub(crate) async fn draining(old: &Self) -> Self {
        let store = FaultyStore::new(&old.clock, &old.clock, Faults::default());
        let dq = Dq::builder().backend(store.clone()).drain(OpenStore::new(old.store.clone()));
        let dq = dq.clock(old.clock.clone()).connect().await.unwrap();
        Self::with_client(dq, store, old.clock.clone())
    }

    async fn over(store: Arc<FaultyStore>, clock: Arc<VirtualClock>) -> Self {
        let builder = Dq::builder().backend(store.clone()).clock(clock.clone());
        let dq = builder.entropy(Entropy::seeded(1)).connect().await.unwrap();
        Self::with_client(dq, store, clock)
    }

    pub(crate) fn with_client(dq: Dq, store: Arc<FaultyStore>, clock: Arc<VirtualClock>) -> Self {
        log_lines::collect();
        let (sender, observed) = mpsc::unbounded_channel();
        Self { dq, store, clock, observed, sender, stop: None, running: None }
    }

    /// Has a job, and a runner with this handler that has claimed it or will.
    pub(crate) async fn running(handler: impl DelayHandler) -> Self {
        Self::faulty_running(Faults::default(), handler).await
    }

    pub(crate) async fn faulty_running(faults: Faults, handler: impl DelayHandler) -> Self {
        let mut fixture = Self::faulty(faults).await;
        fixture.schedule("x").await;
        fixture.run(handler);
        fixture
    }

    /// Has a job, and a runner whose blocking handler runs it until the test sends the result.
    pub(crate) async fn blocking(
        settings: QueueSettings,
        change: impl FnOnce(RunnerBuilder) -> RunnerBuilder,
    ) -> (Self, Blocking) {
        let (sender, results) = std_mpsc::channel();
        let runs = Arc::new(Runs::default());
        let blocking = Blocking { runs: runs.clone(), results: sender };
        let mut fixture = Self::new().await;
        fixture.schedule("x").await;
        let handler = BlockingHandler { settings, results: Mutex::new(results), runs };
        fixture.start(|runner| change(runner.handler(handler)));
        while blocking.runs.highest() == 0 {
            tokio::task::yield_now().await;
        }
        (fixture, blocking)
    }

    pub(crate) fn run(&mut self, handler: impl DelayHandler) {
        self.start(|runner| runner.handler(handler));
    }

    /// Starts a runner; `change` adds handlers and settings.
    pub(crate) fn start(&mut self, change: impl FnOnce(RunnerBuilder) -> RunnerBuilder) {
        let sender = self.sender.clone();
        let observer = move |event: &Event<'_>| {
            let _ = Observed::of(event).map(|observed| sender.send(observed));
        };
        let builder = self.dq.runner().without_linked_handlers().observer(observer);
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
        let claimed = async {
            while self.store.calls("claim") == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), claimed).await.expect("the runner claims");
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

    pub(crate) fn queue(&self) -> QueueHandle {
        self.dq.queue(QUEUE).unwrap()
    }

    pub(crate) async fn schedule(&self, payload: &str) {
        let payload = serde_json::to_vec(payload).unwrap();
        assert!(self.queue().schedule(payload, "application/json").await.unwrap().is_stored());
    }

    /// Claims due jobs beside the runner, as a process that does not renew its leases.
    pub(crate) async fn claim(&self, lease: Duration) -> Vec<LeasedJob> {
        let wants = [Want::new(QUEUE.try_into().unwrap(), 10, lease)];
        let claimed = Backend::claim(&*self.store, ClaimParams::new(&wants, 10, "crashes")).await;
        claimed.unwrap().jobs
    }

    /// Returns the queue's only dead job, and why it is dead.
    pub(crate) async fn dead_job(&self) -> (JobView, DeadKind, String) {
        let mut jobs = self.queue().browse(JobState::Dead).await.unwrap().jobs;
        assert_eq!(jobs.len(), 1);
        let (reason, _) = jobs[0].dead.clone().unwrap();
        (jobs.remove(0), reason.kind, reason.message)
    }

    /// Returns the queue's counts; fails if a job was lost or doubled.
    pub(crate) async fn stats(&self) -> QueueStats {
        let stats = self.queue().stats().await.unwrap();
        assert_eq!(stats.adds_up(), Some(true), "{stats:?}");
        stats
    }

    pub(crate) async fn done(&self) -> u64 {
        self.stats().await.totals.unwrap().done
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

    pub(crate) fn takes(time: Duration) -> Self {
        Self::new(move |job, _| async move {
            job.sleep(time).await;
            Ok(Outcome::Done)
        })
    }

    /// Is done when it is cancelled, for example because its lease is lost.
    pub(crate) fn until_cancelled() -> Self {
        Self::new(async |job, _| {
            job.cancelled().await;
            Ok(Outcome::Done)
        })
    }

    pub(crate) fn of_queue(self, queue: &'static str) -> Self {
        Self { queue, ..self }
    }

    pub(crate) fn with(self, settings: QueueSettings) -> Self {
        Self { settings, ..self }
    }

    /// The runner cannot claim a second job, such as the same one again after a lost lease.
    pub(crate) fn one_at_once(mut self) -> Self {
        self.settings.concurrency = Some(1);
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

pub(crate) struct Blocking {
    pub(crate) runs: Arc<Runs>,
    results: std_mpsc::Sender<HandlerResult>,
}

impl Blocking {
    pub(crate) fn end(&self, result: HandlerResult) {
        self.results.send(result).unwrap();
    }
}

struct BlockingHandler {
    settings: QueueSettings,
    results: Mutex<std_mpsc::Receiver<HandlerResult>>,
    runs: Arc<Runs>,
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

pub(crate) async fn settle_down() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}
