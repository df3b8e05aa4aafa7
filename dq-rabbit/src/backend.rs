//! The backend: connects everything, and passes each call on to the [engine](crate::engine).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use dq_core::config::{BackendConfig, Environment};
use dq_core::{
    Announced, Announcement, Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed,
    Finding, JobRef, JobView, Listeners, NewJob, OperateReport, Operation, Page, QueueName,
    QueueStats, Renewal, Renewed, Reschedule, Rescheduled, Result, Scheduled, Settled, Settlement,
    Timestamp, Wakeups,
};
use tokio::sync::mpsc::unbounded_channel;
use tokio_util::task::AbortOnDropHandle;

use crate::check::findings::check_failed;
use crate::check::management::ManagementApi;
use crate::check::{BrokerCheck, policy};
use crate::config::RabbitConfig;
use crate::connect::AmqpConnection;
use crate::engine::Engine;
use crate::error::{closed, may_pass};
use crate::log::{CLAIM_AHEAD, Log, LogContext};
use crate::message::consumer::JobConsumer;
use crate::message::deliveries::DeliveryHandler;
use crate::message::{BASE_SPREAD, Publisher};
use crate::payloads::buffer::PayloadBuffer;
use crate::payloads::misses::Misses;
use crate::payloads::{read_ahead, stale};
use crate::release::release_all;
use crate::topology::Topology;
use crate::topology::ladder::Ladder;

/// A backend that keeps delayed jobs in RabbitMQ.
#[derive(Debug)]
pub struct RabbitBackend {
    engine: Arc<Engine>,
    consumer: JobConsumer,
    config: RabbitConfig,
    environment: Environment,
    /// Appends to the log and publishes job messages.
    publish: Arc<AmqpConnection>,
    /// Reads the log.
    consume: Arc<AmqpConnection>,
    topology: Arc<Topology>,
    listeners: Arc<Listeners>,
    management: Option<ManagementApi>,
    is_closed: AtomicBool,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl RabbitBackend {
    /// Connects, declares exchanges and queues, and reads the log.
    ///
    /// # Errors
    /// `Config` for invalid settings, wrong credentials or missing permissions; `Unavailable` if
    /// the broker cannot be reached or does not reply; `Incompatible` if the broker is too old or
    /// has no streams, or the log was written by a newer version.
    pub async fn connect(config: &RabbitConfig, environment: &Environment) -> Result<Self> {
        config.validate()?;
        let Environment { clock, entropy, history, .. } = environment;
        let broker = Arc::new(config.broker(Arc::clone(entropy))?);
        let publish = Arc::new(AmqpConnection::start(Arc::clone(&broker), "publish"));
        let consume = Arc::new(AmqpConnection::start(Arc::clone(&broker), "consume"));
        let topology = Arc::new(Topology::new(Arc::clone(&publish), config));
        let management = config
            .management
            .clone()
            .map(|url| ManagementApi::new(url, broker.vhost().to_owned(), config.ca.as_deref()));
        topology.prepare().await?;
        if let Some(management) = &management {
            match policy::refuse(management, &topology).await {
                // Without the management API, only `check` works less well.
                Err(error) if error.failed_operation() == "check" => {
                    tracing::warn!(%error, "the policies of the broker are not known");
                }
                refused => refused?,
            }
        }
        let listeners = Arc::new(Listeners::default());
        let payloads = Arc::new(PayloadBuffer::default());
        let opening = Log::open(LogContext {
            response_timeout: config.response_timeout,
            log_size: config.log_bytes(),
            history: history.clone(),
            clock: Arc::clone(clock),
            entropy: Arc::clone(entropy),
            topology: Arc::clone(&topology),
            publish: Arc::clone(&publish),
            consume: Arc::clone(&consume),
            listeners: Arc::clone(&listeners),
            payloads: Arc::clone(&payloads),
        });
        let (log, ()) = tokio::try_join!(opening, topology.declare_messages())?;
        let publisher = Arc::new(Publisher::new(Arc::clone(&publish), Arc::clone(&topology)));
        let ladder_early = Ladder::max_early_ms(config.queues).unsigned_abs();
        // A message arrives early, and its other jobs are due up to `BASE_SPREAD` after the first.
        // Jobs that are due even later, after a long delay, are published again.
        let max_early = Duration::from_millis(ladder_early) + BASE_SPREAD;
        let (releases, released) = unbounded_channel();
        let engine = Arc::new(Engine {
            log,
            payloads,
            misses: Misses::new(!publisher.has_messages()),
            publisher,
            max_early,
            releases,
            quarantined: Mutex::default(),
        });
        let handler = Arc::new(DeliveryHandler {
            engine: Arc::clone(&engine),
            listeners: Arc::clone(&listeners),
        });
        let tasks = [
            tokio::spawn(read_ahead::run(Arc::downgrade(&engine))),
            tokio::spawn(release_all(Arc::downgrade(&engine), released)),
            tokio::spawn(Arc::clone(&topology).keep()),
            tokio::spawn(stale::prune(Arc::downgrade(&engine))),
        ];
        let consumer = JobConsumer::new(
            broker,
            Arc::clone(&topology),
            Arc::clone(clock),
            config.prefetch,
            handler,
        );
        Ok(Self {
            engine,
            consumer,
            config: config.clone(),
            environment: environment.clone(),
            publish,
            consume,
            topology,
            listeners,
            management,
            is_closed: AtomicBool::new(false),
            _tasks: tasks.map(AbortOnDropHandle::new).into(),
        })
    }

    #[cfg(test)]
    pub(crate) fn log(&self) -> &Log {
        &self.engine.log
    }

    /// # Errors
    /// `Closed` after `close`; the log's error if it cannot be read any further.
    fn engine(&self, operation: &'static str) -> Result<&Arc<Engine>> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed(operation));
        }
        self.engine.log.failure(operation).map_or(Ok(&self.engine), Err)
    }

    fn serve(&self, queue: &QueueName) {
        self.engine.payloads.serve(queue);
        self.consumer.consume(queue);
    }
}

#[async_trait]
impl Backend for RabbitBackend {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        // Among jobs with the same due time, a process first claims the ones that it has payloads
        // for.
        capabilities.fifo = false;
        capabilities
    }

    async fn now(&self) -> Result<Timestamp> {
        self.engine("now")?;
        Ok(self.environment.clock.now())
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.engine("schedule")?.schedule(jobs).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.engine("cancel")?.cancel(jobs).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.engine("reschedule")?.reschedule(moves).await
    }

    async fn listen(&self, queues: &[QueueName], worker: &str) -> Result<Wakeups> {
        self.engine("listen")?;
        queues.iter().for_each(|queue| self.serve(queue));
        Ok(self.listeners.listen(queues, worker))
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let engine = self.engine("claim")?;
        if params.limit == 0 || params.wants.iter().all(|want| want.max == 0) {
            return Ok(engine.empty_claim(&params));
        }
        params.wants.iter().for_each(|want| self.serve(&want.queue));
        if let Some(loss) = engine.log.take_loss() {
            return Err(loss);
        }
        match engine.claim(&params).await {
            // `Incompatible` ends the runner for good.
            Err(error) if engine.log.failure("claim").is_none() => Err(may_pass(error)),
            claimed => claimed,
        }
    }

    fn claim_ahead(&self) -> Duration {
        CLAIM_AHEAD
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.engine("settle")?.settle(settlements).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.engine("renew")?.renew(renewals).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.engine("stats")?.stats(queues).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.engine("browse")?.browse(&params).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.engine("get")?.get(job).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.engine("operate")?.operate(operation).await
    }

    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        self.engine("forecast")?.forecast(queue, edges).await
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        self.engine("announce")?.announce(announcement).await
    }

    async fn runners(&self) -> Result<Vec<Announced>> {
        self.engine("runners")?.runners().await
    }

    async fn check(&self) -> Vec<Finding> {
        let failure = self.engine("check").err().map(|error| check_failed(&error));
        if self.is_closed.load(Ordering::Acquire) {
            return failure.into_iter().collect();
        }
        let check = BrokerCheck {
            connection: &self.publish,
            topology: &self.topology,
            config: &self.config,
            management: self.management.as_ref(),
            entropy: &self.environment.entropy,
            engine: &self.engine,
        };
        let mut findings = check.findings().await;
        let is_told = |code| findings.iter().any(|finding| finding.code == code);
        findings.extend(failure.filter(|failure| !is_told(failure.code)));
        findings
    }

    async fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Release);
        self.consumer.close().await;
        self.engine.publisher.close().await;
        self.engine.log.close().await;
        self.consume.close().await;
        self.publish.close().await;
        self.engine.log.failure("close").map_or(Ok(()), Err)
    }
}

#[typetag::deserialize(name = "rabbitmq")]
#[async_trait]
impl BackendConfig for RabbitConfig {
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(RabbitBackend::connect(self, environment).await?))
    }
}

dq_core::register_backend! {
    name: "rabbitmq",
    settings: RabbitConfig,
    schemes: ["amqp", "amqps", "rabbitmq", "rabbitmqs"],
    from_url: |url| Ok(Box::new(RabbitConfig::from_url(url)?)),
}
