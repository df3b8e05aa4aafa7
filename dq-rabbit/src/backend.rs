//! Implements the trait [`Backend`], and registers the backend by name and URL schemes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dq_core::config::{BackendConfig, Environment};
use dq_core::{
    Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed, Finding, JobRef, JobView,
    Listeners, NewJob, OperateReport, Operation, Page, QueueName, QueueStats, Renewal, Renewed,
    Reschedule, Rescheduled, Result, Scheduled, Settled, Settlement, Timestamp, Wakeups,
};
use tokio_util::task::AbortOnDropHandle;

use crate::check::BrokerCheck;
use crate::config::{QueueKind, RabbitConfig, TopologyMode};
use crate::connect::{AmqpConnection, Broker};
use crate::consumer::JobConsumer;
use crate::deliveries::DeliveryHandler;
use crate::engine::Engine;
use crate::error::closed;
use crate::ladder::Ladder;
use crate::log::{CLAIM_AHEAD, Log, LogSettings};
use crate::management::ManagementApi;
use crate::message::{BASE_SPREAD, Publisher};
use crate::topology::Topology;

/// A backend that keeps delayed jobs in RabbitMQ.
#[derive(Debug)]
pub struct RabbitBackend {
    _prune_task: AbortOnDropHandle<()>,
    engine: Arc<Engine>,
    consumer: JobConsumer,
    listeners: Arc<Listeners>,
    /// The connection that appends to the log and publishes job messages.
    publish: Arc<AmqpConnection>,
    /// The connection that reads the log.
    consume: Arc<AmqpConnection>,
    topology: Arc<Topology>,
    queues: QueueKind,
    mode: TopologyMode,
    management: Option<ManagementApi>,
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
        let broker = Arc::new(Broker::new(&config.broker()?, Arc::clone(&environment.entropy))?);
        let publish = Arc::new(AmqpConnection::start(Arc::clone(&broker), "publish"));
        let consume = Arc::new(AmqpConnection::start(Arc::clone(&broker), "consume"));
        let topology = Arc::new(Topology::new(Arc::clone(&publish), config));
        topology.declare_all().await?;
        let listeners = Arc::new(Listeners::default());
        let settings = LogSettings {
            response_timeout: config.response_timeout,
            size: config.log_bytes().unsigned_abs(),
        };
        let log = Log::open(
            settings,
            environment,
            Arc::clone(&topology),
            Arc::clone(&publish),
            Arc::clone(&consume),
            Arc::clone(&listeners),
        )
        .await?;
        let publisher = Arc::new(Publisher::new(Arc::clone(&publish), Arc::clone(&topology)));
        let ladder_early = Ladder::max_early_ms(config.queues).unsigned_abs();
        let max_early = Duration::from_millis(ladder_early) + BASE_SPREAD;
        let entropy = Arc::clone(&environment.entropy);
        let engine = Arc::new(Engine::new(log, publisher, entropy, max_early));
        let handler = Arc::new(DeliveryHandler {
            engine: Arc::clone(&engine),
            listeners: Arc::clone(&listeners),
            names: topology.names().clone(),
        });
        let clock = Arc::clone(&environment.clock);
        let prune_task = tokio::spawn(DeliveryHandler::prune(Arc::downgrade(&handler), clock));
        let consumer = JobConsumer::new(
            broker,
            Arc::clone(&topology),
            Arc::clone(&environment.clock),
            config.prefetch,
            handler,
        );
        let management = config.management.clone();
        Ok(Self {
            _prune_task: AbortOnDropHandle::new(prune_task),
            engine,
            consumer,
            listeners,
            publish,
            consume,
            topology,
            queues: config.queues,
            mode: config.topology,
            management: management.map(|url| ManagementApi::new(url, config.ca.clone())),
        })
    }

    fn ensure_open(&self, operation: &'static str) -> Result<()> {
        if self.engine.log.is_closed() {
            return Err(closed(operation));
        }
        Ok(())
    }
}

#[async_trait]
impl Backend for RabbitBackend {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        // Of jobs that are due at the same time, prefetched ones are claimed first.
        capabilities.fifo = false;
        capabilities
    }

    async fn now(&self) -> Result<Timestamp> {
        self.ensure_open("now")?;
        Ok(self.engine.log.now())
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.ensure_open("schedule")?;
        self.engine.schedule(jobs).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.engine.cancel(jobs).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.engine.reschedule(moves).await
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        self.ensure_open("listen")?;
        for queue in queues {
            self.consumer.consume(queue);
        }
        Ok(self.listeners.listen(queues))
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.ensure_open("claim")?;
        if params.limit == 0 || params.wants.iter().all(|want| want.max == 0) {
            return Ok(self.engine.empty_claim(&params));
        }
        for want in params.wants {
            self.consumer.consume(&want.queue);
        }
        self.engine.claim(&params).await
    }

    fn claim_ahead(&self) -> Duration {
        CLAIM_AHEAD
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.engine.settle(settlements).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.engine.renew(renewals).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.engine.stats(queues).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.engine.browse(&params).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.engine.get(job).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.engine.operate(operation).await
    }

    async fn check(&self) -> Vec<Finding> {
        let check = BrokerCheck {
            connection: &self.publish,
            topology: &self.topology,
            queues: self.queues,
            mode: self.mode,
            management: self.management.as_ref(),
            clock: self.engine.log.clock(),
            entropy: &self.engine.entropy,
            claim_counts: self.engine.claim_counts(),
            log_is_full: self.engine.log.is_full(),
        };
        check.findings().await
    }

    async fn close(&self) -> Result<()> {
        self.consumer.close().await;
        self.engine.publisher.close().await;
        self.engine.log.close().await;
        tokio::join!(self.publish.close(), self.consume.close());
        Ok(())
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
    schemes: ["amqp", "amqps", "rabbitmq", "rabbitmqs"],
    from_url: |url| Ok(Box::new(RabbitConfig::from_url(url)?)),
}
