//! Fixtures: backends, jobs, a runner, and assertions on errors.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::config::{Environment, QueueSettings};
use dq_core::{
    Backend, ClaimParams, Claimed, Clock, DelayHandler, Dq, Due, Entropy, Error, ErrorKind,
    HandlerResult, JobContext, JobId, JobKey, JobRef, NewJob, Outcome, QueueCode, QueueName,
    QueueStats, Result, Settlement, SystemClock, Timestamp, Verdict, Want,
};
use dq_rabbit::{QueueKind, RabbitBackend, RabbitConfig};
use dq_servers::{RabbitMq, shared_rabbitmq};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use tokio::sync::{mpsc, oneshot};

/// Timeout for anything that happens without a call, on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Settings for a separate virtual host on the shared server. Its queues are classic, which costs
/// least; quorum queues are tested on separate servers.
pub(crate) fn config(vhost: &str) -> RabbitConfig {
    // Each test declares about 300 queues, which need more memory than the default limit.
    shared_rabbitmq().eval("vm_memory_monitor:set_vm_memory_high_watermark({absolute, \"2GB\"})");
    let mut config = RabbitConfig::new(shared_rabbitmq().vhost(vhost));
    config.queues = QueueKind::Classic;
    config.response_timeout = Duration::from_secs(10);
    config
}

/// Settings for this server.
pub(crate) fn config_for(server: &RabbitMq) -> RabbitConfig {
    let mut config = RabbitConfig::new(server.url());
    config.response_timeout = Duration::from_secs(10);
    config
}

pub(crate) async fn connect(config: &RabbitConfig) -> Result<Arc<dyn Backend>> {
    connect_with_clock(config, Arc::new(SystemClock)).await
}

/// Connects a backend with this clock.
pub(crate) async fn connect_with_clock(
    config: &RabbitConfig,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>> {
    let environment = Environment::new(clock, Arc::new(Entropy::from_os()));
    Ok(Arc::new(RabbitBackend::connect(config, &environment).await?))
}

/// Connects to a server that works.
pub(crate) async fn open(config: &RabbitConfig) -> Arc<dyn Backend> {
    connect(config).await.expect("the server works")
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a valid name")
}

/// A job that is due now; its payload is its id.
pub(crate) fn job(name: &str) -> NewJob {
    let id = Entropy::from_os().job_id(SystemClock.now());
    NewJob::new(id, queue(name), Due::NOW, format!("\"{id}\"").into())
}

pub(crate) fn keyed(name: &str, key: &str) -> NewJob {
    NewJob { key: Some(JobKey::new(key).expect("a valid key")), ..job(name) }
}

/// The job, due in `millis` milliseconds.
pub(crate) fn after(millis: u64, job: NewJob) -> NewJob {
    NewJob { due: Due::At(SystemClock.now() + Duration::from_millis(millis)), ..job }
}

/// The job, due in an hour.
pub(crate) fn in_an_hour(job: NewJob) -> NewJob {
    after(3_600_000, job)
}

pub(crate) fn by_id(job: &NewJob) -> JobRef {
    JobRef::new(job.queue.clone(), job.id)
}

/// Claims with a lease of 30 seconds.
pub(crate) async fn claim(backend: &dyn Backend, name: &str, limit: usize) -> Result<Claimed> {
    claim_for(backend, name, limit, Duration::from_secs(30)).await
}

pub(crate) async fn claim_for(
    backend: &dyn Backend,
    name: &str,
    limit: usize,
    lease_for: Duration,
) -> Result<Claimed> {
    let wants = [Want { queue: queue(name), max: limit, lease_for }];
    backend.claim(ClaimParams { wants: &wants, limit, worker: "faults" }).await
}

/// Settles all claimed jobs with `Done`.
pub(crate) fn done_settlements(claimed: &Claimed) -> Vec<Settlement> {
    let done =
        |leased: &dq_core::LeasedJob| Settlement { lease: leased.lease(), verdict: Verdict::Done };
    claimed.jobs.iter().map(done).collect()
}

pub(crate) async fn stats(backend: &dyn Backend, name: &str) -> QueueStats {
    let queues = [queue(name)];
    retry(|| backend.stats(&queues)).await.remove(0)
}

/// Asserts that a call fails with this kind and a helpful error that contains these words.
#[track_caller]
pub(crate) fn assert_error<T>(result: Result<T>, kind: ErrorKind, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("expected {kind}, but the call succeeded") };
    assert_helpful(&error, words);
    assert_eq!(error.kind(), kind, "{error}");
    error
}

/// Asserts that an error contains these words, an operation and a remedy, and no password.
#[track_caller]
pub(crate) fn assert_helpful(error: &Error, words: &[&str]) {
    let text = format!("{error} {error:?}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
    assert!(error.remedy_text().is_some(), "{text}");
    assert!(!error.failed_operation().is_empty(), "{text}");
    assert!(!text.contains("secret") && !text.contains("hunter2"), "{text}");
}

/// Waits until the condition is true.
pub(crate) async fn wait_until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    poll(what, async || condition().await.then_some(())).await;
}

/// Waits until there is a value.
pub(crate) async fn poll<T>(what: &str, mut get: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = get().await {
            return value;
        }
        assert!(Instant::now() < deadline, "timeout after {TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Claims until there is a job.
pub(crate) async fn claim_until_some(backend: &dyn Backend, name: &str) -> Claimed {
    poll(name, async || {
        let claimed = retry(|| claim(backend, name, 1)).await;
        (!claimed.jobs.is_empty()).then_some(claimed)
    })
    .await
}

/// Repeats a call while its error is retryable, as an application does.
pub(crate) async fn retry<T, F: Future<Output = Result<T>>>(mut call: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) => {
                assert!(error.is_retryable(), "not retryable: {error}");
                assert_helpful(&error, &[]);
                assert!(Instant::now() < deadline, "timeout: {error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// Runs a blocking operation on a server while other tasks continue.
pub(crate) async fn blocking<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(act).await.expect("the operation does not panic")
}

/// A plain AMQP client, with confirms.
pub(crate) async fn amqp_client(url: &str) -> (Connection, Channel) {
    let connection =
        Connection::connect(url, ConnectionProperties::default()).await.expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    (connection, channel)
}

/// Publishes a message that the broker must confirm.
pub(crate) async fn publish(
    channel: &Channel,
    exchange: &str,
    key: &str,
    body: &[u8],
    properties: BasicProperties,
) {
    let options = BasicPublishOptions::default();
    let confirm =
        channel.basic_publish(exchange.into(), key.into(), options, body, properties).await;
    assert_eq!(confirm.unwrap().await.unwrap(), Confirmation::Ack(None));
}

/// A runner that runs until this is dropped.
#[derive(Debug)]
pub(crate) struct TestRunner {
    /// Started jobs with their start times.
    pub(crate) started: mpsc::UnboundedReceiver<(JobId, Timestamp)>,
    _stop: oneshot::Sender<()>,
}

struct RecordingHandler {
    code: String,
    duration: Duration,
    started: mpsc::UnboundedSender<(JobId, Timestamp)>,
}

impl DelayHandler for RecordingHandler {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        self.code.clone()
    }

    async fn handle(&self, ctx: JobContext, payload: String) -> HandlerResult {
        assert_eq!(payload, ctx.id().to_string(), "each job has its own payload");
        self.started.send((ctx.id(), SystemClock.now())).ok();
        tokio::time::sleep(self.duration).await;
        Ok(Outcome::Done)
    }
}

/// Starts a runner of this queue.
pub(crate) async fn start_runner(backend: &Arc<dyn Backend>, name: &str) -> TestRunner {
    start_runner_with(backend, name, Duration::ZERO, QueueSettings::new()).await
}

/// Starts a runner whose handler takes `duration`.
pub(crate) async fn start_runner_with(
    backend: &Arc<dyn Backend>,
    name: &str,
    duration: Duration,
    settings: QueueSettings,
) -> TestRunner {
    let dq = Dq::builder().backend(Arc::clone(backend)).connect().await.expect("a client");
    let (sender, started) = mpsc::unbounded_channel();
    let handler = RecordingHandler { code: name.to_owned(), duration, started: sender };
    let runner = dq.runner().without_linked_handlers().handler(handler).queue(name, settings);
    let (stop, stopped) = oneshot::channel();
    let runner = runner.build().expect("a runner");
    tokio::spawn(runner.run_until(async {
        stopped.await.ok();
    }));
    TestRunner { started, _stop: stop }
}

impl TestRunner {
    /// Waits until all of these jobs have started, and asserts that none is early. Returns how
    /// often each has started.
    pub(crate) async fn wait_for_all(&mut self, jobs: &[NewJob]) -> BTreeMap<JobId, usize> {
        let mut missing: HashMap<JobId, Timestamp> =
            jobs.iter().map(|job| (job.id, job.due.resolve(Timestamp::from_millis(0)))).collect();
        let all = missing.clone();
        let mut counts = BTreeMap::new();
        while !missing.is_empty() {
            let next = tokio::time::timeout(TIMEOUT, self.started.recv()).await;
            let Ok(next) = next else {
                panic!("{} of {} jobs do not start: {missing:?}", missing.len(), jobs.len())
            };
            let (id, at) = next.expect("the runner runs");
            if let Some(due) = all.get(&id) {
                assert!(at >= *due, "{id} is due at {due} and started at {at}");
                missing.remove(&id);
                *counts.entry(id).or_default() += 1;
            }
        }
        // Repeated starts that are in the channel already.
        while let Ok((id, _)) = self.started.try_recv() {
            *counts.entry(id).or_default() += 1;
        }
        counts
    }

    /// As [`wait_for_all`](Self::wait_for_all), and asserts that each job has started once.
    pub(crate) async fn expect_each_once(&mut self, jobs: &[NewJob]) {
        let counts = self.wait_for_all(jobs).await;
        let repeated: Vec<_> = counts.iter().filter(|(_, count)| **count != 1).collect();
        assert!(repeated.is_empty(), "{repeated:?}");
    }
}
