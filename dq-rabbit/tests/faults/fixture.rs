//! What the tests stand on: a handle, jobs, a runner, and what an error must say.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::config::Environment;
use dq_core::config::QueueSettings;
use dq_core::{
    Backend, ClaimParams, Claimed, Clock, DelayHandler, Dq, Due, Entropy, Error, ErrorKind,
    HandlerResult, Headers, JobContext, JobId, JobKey, JobRef, NewJob, OnConflict, Outcome,
    QueueCode, QueueName, QueueStats, Result, Settlement, SystemClock, Timestamp, Verdict, Want,
};
use dq_rabbit::{QueueKind, RabbitBackend, RabbitConfig};
use dq_servers::{RabbitMq, shared_rabbitmq};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use tokio::sync::{mpsc, oneshot};

/// How long anything may take that happens by itself, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Settings for a virtual host of its own on the server that the tests share. Its queues are of the
/// kind that costs least: what is special about the other kind is shown on servers of their own.
pub(crate) fn config(vhost: &str) -> RabbitConfig {
    // Two hundred queues for each test take more than what servers of tests have mostly.
    shared_rabbitmq().eval("vm_memory_monitor:set_vm_memory_high_watermark({absolute, \"2GB\"})");
    let mut config = RabbitConfig::new(shared_rabbitmq().vhost(vhost));
    config.queues = QueueKind::Classic;
    config.response_timeout = Duration::from_secs(10);
    config
}

/// Settings for a server of its own.
pub(crate) fn config_for(server: &RabbitMq) -> RabbitConfig {
    let mut config = RabbitConfig::new(server.url());
    config.response_timeout = Duration::from_secs(10);
    config
}

pub(crate) async fn connect(config: &RabbitConfig) -> Result<Arc<dyn Backend>> {
    connect_with_clock(config, Arc::new(SystemClock)).await
}

/// One whose process has this clock.
pub(crate) async fn connect_with_clock(
    config: &RabbitConfig,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>> {
    let environment = Environment::new(clock, Arc::new(Entropy::from_os()));
    Ok(Arc::new(RabbitBackend::connect(config, &environment).await?))
}

/// A handle on a server that is well.
pub(crate) async fn open(config: &RabbitConfig) -> Arc<dyn Backend> {
    connect(config).await.expect("the server is well")
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a name")
}

/// A job that is due at once.
pub(crate) fn job(name: &str) -> NewJob {
    let id = Entropy::from_os().job_id(SystemClock.now());
    NewJob {
        id,
        queue: queue(name),
        key: None,
        on_conflict: OnConflict::Keep,
        due: Due::NOW,
        payload: format!("\"{id}\"").into(),
        headers: Headers::new(),
        max_attempts: None,
    }
}

pub(crate) fn keyed(name: &str, key: &str) -> NewJob {
    NewJob { key: Some(JobKey::new(key).expect("a key")), ..job(name) }
}

/// The job, due after so many milliseconds from now.
pub(crate) fn after(millis: u64, job: NewJob) -> NewJob {
    NewJob { due: Due::At(SystemClock.now() + Duration::from_millis(millis)), ..job }
}

pub(crate) fn in_an_hour(job: NewJob) -> NewJob {
    after(3_600_000, job)
}

pub(crate) fn by_id(job: &NewJob) -> JobRef {
    JobRef::new(job.queue.clone(), job.id)
}

/// Leases of thirty seconds.
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

/// Done with each of these.
pub(crate) fn done_settlements(claimed: &Claimed) -> Vec<Settlement> {
    let done =
        |leased: &dq_core::LeasedJob| Settlement { lease: leased.lease(), verdict: Verdict::Done };
    claimed.jobs.iter().map(done).collect()
}

pub(crate) async fn stats(backend: &dyn Backend, name: &str) -> QueueStats {
    let queues = [queue(name)];
    retry(|| backend.stats(&queues)).await.remove(0)
}

/// Says that a call was refused as it should be: with this kind, these words in the message, a
/// remedy, and no password.
#[track_caller]
pub(crate) fn refused<T>(answer: Result<T>, kind: ErrorKind, words: &[&str]) -> Error {
    let Err(error) = answer else { panic!("expected {kind}, and it went well") };
    assert_helpful(&error, words);
    assert_eq!(error.kind(), kind, "{error}");
    error
}

/// Says that an error tells what its reader needs.
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

/// Asks until the answer is yes.
pub(crate) async fn wait_until(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    poll(what, async || ask().await.then_some(())).await;
}

/// Asks until there is an answer.
pub(crate) async fn until_some<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: still not after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Claims until something comes of it.
pub(crate) async fn claim_until_some(backend: &dyn Backend, name: &str) -> Claimed {
    poll(name, async || {
        let claimed = retry(|| claim(backend, name, 1)).await;
        (!claimed.jobs.is_empty()).then_some(claimed)
    })
    .await
}

/// Calls until it is answered: what an application does with an error that may go away.
pub(crate) async fn persist<T, F: Future<Output = Result<T>>>(mut call: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(error.is_retryable(), "not to be repeated: {error}");
                assert_helpful(&error, &[]);
                assert!(Instant::now() < deadline, "still not: {error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// What is done to a server takes time, and the others go on meanwhile.
pub(crate) async fn aside<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(act).await.expect("it is done")
}

/// A channel of a client that knows nothing of us.
pub(crate) async fn amqp_client(url: &str) -> (Connection, Channel) {
    let connection =
        Connection::connect(url, ConnectionProperties::default()).await.expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    (connection, channel)
}

/// Publishes what the broker must take.
pub(crate) async fn publish(
    channel: &Channel,
    exchange: &str,
    key: &str,
    body: &[u8],
    properties: BasicProperties,
) {
    let options = BasicPublishOptions::default();
    let sent = channel.basic_publish(exchange.into(), key.into(), options, body, properties).await;
    assert_eq!(sent.unwrap().await.unwrap(), Confirmation::Ack(None));
}

/// A runner that is at work until this is dropped.
#[derive(Debug)]
pub(crate) struct TestRunner {
    /// Jobs as they begin, and when.
    pub(crate) ran: mpsc::UnboundedReceiver<(JobId, Timestamp)>,
    _stop: oneshot::Sender<()>,
}

struct Runs {
    code: String,
    takes: Duration,
    ran: mpsc::UnboundedSender<(JobId, Timestamp)>,
}

impl DelayHandler for Runs {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        self.code.clone()
    }

    async fn handle(&self, ctx: JobContext, payload: String) -> HandlerResult {
        assert_eq!(payload, ctx.id().to_string(), "each has its own payload");
        self.started.send((ctx.id(), SystemClock.now())).ok();
        tokio::time::sleep(self.takes).await;
        Ok(Outcome::Done)
    }
}

/// Serves this queue in a task of its own.
pub(crate) async fn start_runner(backend: &Arc<dyn Backend>, name: &str) -> TestRunner {
    start_runner_with(backend, name, Duration::ZERO, QueueSettings::new()).await
}

/// The same, with handlers that take so long.
pub(crate) async fn start_runner_with(
    backend: &Arc<dyn Backend>,
    name: &str,
    takes: Duration,
    settings: QueueSettings,
) -> TestRunner {
    let dq = Dq::builder().backend(Arc::clone(backend)).connect().await.expect("a client");
    let (sender, ran) = mpsc::unbounded_channel();
    let runs = Runs { code: name.to_owned(), takes, ran: sender };
    let runner = dq.runner().without_linked_handlers().handler(runs).queue(name, settings);
    let (stop, stopped) = oneshot::channel();
    let runner = runner.build().expect("a runner");
    tokio::spawn(runner.run_until(async {
        stopped.await.ok();
    }));
    TestRunner { ran, _stop: stop }
}

impl TestRunner {
    /// Waits until all of these have begun, none of them early; how often each did.
    pub(crate) async fn all_of(&mut self, jobs: &[NewJob]) -> BTreeMap<JobId, usize> {
        let mut dues: HashMap<JobId, Timestamp> =
            jobs.iter().map(|job| (job.id, job.due.resolve(Timestamp::from_millis(0)))).collect();
        let all = dues.clone();
        let mut counts = BTreeMap::new();
        while !dues.is_empty() {
            let next = tokio::time::timeout(PATIENCE, self.started.recv()).await;
            let Ok(next) = next else {
                panic!("{} of {} do not run: {dues:?}", dues.len(), jobs.len())
            };
            let (id, at) = next.expect("the runner is at work");
            if let Some(due) = all.get(&id) {
                assert!(at >= *due, "{id} is due at {due} and began at {at}");
                dues.remove(&id);
                *counts.entry(id).or_default() += 1;
            }
        }
        // Those that come once more come at once.
        while let Ok((id, _)) = self.started.try_recv() {
            *counts.entry(id).or_default() += 1;
        }
        counts
    }

    /// The same, each once.
    pub(crate) async fn each_once(&mut self, jobs: &[NewJob]) {
        let counts = self.wait_for_all(jobs).await;
        let twice: Vec<_> = counts.iter().filter(|(_, count)| **count != 1).collect();
        assert!(twice.is_empty(), "{twice:?}");
    }
}
