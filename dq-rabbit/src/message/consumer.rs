//! Consumes the ready queues of job queues.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{Clock, Error, QueueName, Result};
use futures_util::StreamExt;
use lapin::Consumer;
use lapin::types::FieldTable;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connect::{AmqpConnection, Broker};
use crate::error::{LostReply, from_lapin};
use crate::message::deliveries::DeliveryHandler;
use crate::message::{AckTracker, JobMessage};
use crate::topology::Topology;
use crate::topology::names::Topic;

/// The pause before the next attempt. It doubles after each failure, up to the maximum.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct JobConsumer {
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

#[derive(Debug)]
struct Shared {
    broker: Arc<Broker>,
    /// Its own connection, because the broker may close it when we may not consume from a queue,
    /// and that must not interrupt reading the log.
    connection: OnceLock<AmqpConnection>,
    topology: Arc<Topology>,
    clock: Arc<dyn Clock>,
    handler: Arc<DeliveryHandler>,
    prefetch: u16,
    /// `None` before the first consumer.
    channel: tokio::sync::Mutex<Option<Arc<AckTracker>>>,
    consumed: Mutex<HashSet<QueueName>>,
    stop: CancellationToken,
}

impl JobConsumer {
    pub(crate) fn new(
        broker: Arc<Broker>,
        topology: Arc<Topology>,
        clock: Arc<dyn Clock>,
        prefetch: u16,
        handler: Arc<DeliveryHandler>,
    ) -> Self {
        let shared = Arc::new(Shared {
            broker,
            connection: OnceLock::new(),
            topology,
            clock,
            handler,
            prefetch,
            channel: tokio::sync::Mutex::default(),
            consumed: Mutex::default(),
            stop: CancellationToken::new(),
        });
        Self { shared, tasks: TaskTracker::new() }
    }

    /// Starts to consume the ready queue of a job queue. Idempotent.
    pub(crate) fn consume(&self, queue: &QueueName) {
        {
            let mut consumed = lock(&self.shared.consumed);
            if consumed.contains(queue) {
                return;
            }
            consumed.insert(queue.clone());
        }
        let task = Arc::clone(&self.shared).run(queue.clone());
        let stop = self.shared.stop.clone();
        self.tasks.spawn(async move { stop.run_until_cancelled(task).await });
    }

    /// Stops consuming. The broker redelivers unacknowledged messages to other consumers.
    pub(crate) async fn close(&self) {
        self.shared.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        if let Some(connection) = self.shared.connection.get() {
            connection.close().await;
        }
    }
}

impl Drop for JobConsumer {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Shared {
    /// Consumes one queue; starts again whenever the channel or the queue is lost.
    async fn run(self: Arc<Self>, queue: QueueName) {
        let mut pause = RETRY_PAUSE;
        loop {
            match self.subscribe(&queue).await {
                Ok((acks, mut consumer)) => {
                    pause = RETRY_PAUSE;
                    while let Some(Ok(delivery)) = consumer.next().await {
                        let ack = acks.track(delivery.delivery_tag);
                        match JobMessage::parse(&delivery) {
                            Some(jobs) => self.handler.handle_jobs(jobs, ack),
                            None => self.handler.set_aside(&queue, delivery, ack),
                        }
                    }
                    // The queue may have been deleted, and others too.
                    self.topology.report_missing();
                }
                Err(error) => tracing::debug!(%error, %queue, "cannot consume"),
            }
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(MAX_RETRY_PAUSE);
            self.topology.forget_ready(&queue);
        }
    }

    async fn subscribe(&self, queue: &QueueName) -> Result<(Arc<AckTracker>, Consumer)> {
        // Declared first, on another channel: consuming from a missing queue, or while its node is
        // down, closes the channel and ends all other consumers.
        self.topology.declare_ready(queue).await?;
        let name = self.topology.names().ready(&Topic::of(queue));
        let acks = self.channel().await?;
        let consumer = acks.channel().consume(name, FieldTable::default()).await;
        Ok((acks, consumer.map_err(|error| self.error(&error))?))
    }

    fn error(&self, error: &lapin::Error) -> Error {
        from_lapin("consume", LostReply::Unavailable, &self.broker.info, error)
    }

    async fn channel(&self) -> Result<Arc<AckTracker>> {
        let mut current = self.channel.lock().await;
        if let Some(acks) = &*current
            && acks.channel().is_open()
        {
            return Ok(Arc::clone(acks));
        }
        let connection = self
            .connection
            .get_or_init(|| AmqpConnection::start(Arc::clone(&self.broker), "receive"));
        let channel = connection.channel("consume").await?;
        channel.qos(self.prefetch).await.map_err(|error| self.error(&error))?;
        let acks = AckTracker::new(channel);
        let stop = self.stop.clone();
        tokio::spawn({
            let acks = Arc::clone(&acks);
            async move { stop.run_until_cancelled(acks.run()).await }
        });
        if let Some(closed) = current.replace(Arc::clone(&acks)) {
            closed.wake();
        }
        Ok(acks)
    }
}
