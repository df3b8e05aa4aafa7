//! An open backend: the replica, the consumer of job messages, and the background tasks.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{Listeners, Result};
use tokio_util::task::AbortOnDropHandle;

use crate::check::management::ManagementApi;
use crate::check::policy;
use crate::config::RabbitConfig;
use crate::connect::{AmqpConnection, Broker};
use crate::engine::Engine;
use crate::grant::releases;
use crate::log::{Log, LogContext, LogSettings};
use crate::message::consumer::JobConsumer;
use crate::message::deliveries::DeliveryHandler;
use crate::message::{BASE_SPREAD, Publisher};
use crate::payloads::buffer::PayloadBuffer;
use crate::payloads::read_ahead;
use crate::release::release_all;
use crate::topology::Topology;
use crate::topology::ladder::Ladder;

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) engine: Arc<Engine>,
    pub(crate) consumer: JobConsumer,
    /// Reads the log.
    consume: Arc<AmqpConnection>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
pub(crate) struct MemberContext {
    pub(crate) config: RabbitConfig,
    pub(crate) environment: Environment,
    pub(crate) broker: Arc<Broker>,
    /// Appends to the log and publishes job messages.
    pub(crate) publish: Arc<AmqpConnection>,
    pub(crate) topology: Arc<Topology>,
    pub(crate) listeners: Arc<Listeners>,
    pub(crate) management: Option<ManagementApi>,
}

impl Member {
    pub(crate) async fn open(context: &MemberContext) -> Result<Self> {
        let MemberContext { config, environment, broker, publish, topology, listeners, .. } =
            context;
        let consume = Arc::new(AmqpConnection::start(Arc::clone(broker), "consume"));
        topology.prepare().await?;
        if let Some(management) = &context.management {
            match policy::refuse(management, topology).await {
                // Only `check` needs the management API.
                Err(error) if error.failed_operation() == "check" => {
                    tracing::warn!(%error, "the policies of the broker are not known");
                }
                refused => refused?,
            }
        }
        let settings = LogSettings {
            response_timeout: config.response_timeout,
            size: config.log_bytes().unsigned_abs(),
        };
        let payloads = Arc::new(PayloadBuffer::default());
        let opening = Log::open(LogContext {
            settings,
            history: environment.history.clone(),
            clock: Arc::clone(&environment.clock),
            entropy: Arc::clone(&environment.entropy),
            topology: Arc::clone(topology),
            publish: Arc::clone(publish),
            consume: Arc::clone(&consume),
            listeners: Arc::clone(listeners),
            payloads: Arc::clone(&payloads),
        });
        let (log, ()) = tokio::try_join!(opening, topology.declare_messages())?;
        let publisher = Arc::new(Publisher::new(Arc::clone(publish), Arc::clone(topology)));
        let ladder_early = Ladder::max_early_ms(config.queues).unsigned_abs();
        // A message arrives early, and its other jobs are due up to `BASE_SPREAD` after the first.
        // Jobs that are due even later, after a long delay, are published again.
        let max_early = Duration::from_millis(ladder_early) + BASE_SPREAD;
        let (releases, released) = releases();
        let engine = Arc::new(Engine::new(log, payloads, publisher, max_early, releases));
        let tasks = [
            tokio::spawn(read_ahead::run(Arc::downgrade(&engine))),
            tokio::spawn(release_all(Arc::downgrade(&engine), released)),
            tokio::spawn(Arc::clone(topology).keep()),
        ];
        let handler = Arc::new(DeliveryHandler {
            engine: Arc::clone(&engine),
            listeners: Arc::clone(listeners),
        });
        let clock = Arc::clone(&environment.clock);
        let prune_task = tokio::spawn(DeliveryHandler::prune(Arc::downgrade(&handler), clock));
        let tasks = tasks.into_iter().chain([prune_task]).map(AbortOnDropHandle::new).collect();
        let consumer = JobConsumer::new(
            Arc::clone(broker),
            Arc::clone(topology),
            Arc::clone(&environment.clock),
            config.prefetch,
            handler,
        );
        Ok(Self { engine, consumer, consume, _tasks: tasks })
    }

    /// # Errors
    /// The error with which the log has stopped, if it has.
    pub(crate) async fn close(&self) -> Result<()> {
        self.consumer.close().await;
        self.engine.publisher.close().await;
        self.engine.log.close().await;
        self.consume.close().await;
        self.engine.log.failure("close").map_or(Ok(()), Err)
    }
}
