//! Publishes job messages with publisher confirms.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use dq_core::{Error, Result, Timestamp};
use lapin::message::Delivery;
use lapin::types::ShortString;
use lapin::{BasicProperties, Confirmation};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::batch::batch;
use super::job_message::{JobMessage, PublishedJob};
use crate::connect::{AmqpChannel, AmqpConnection, Reply};
use crate::error::{self, LostReply, from_lapin, unconfirmed};
use crate::topology::Topology;
use crate::topology::names::Topic;

/// The most unconfirmed messages of one call.
const MAX_UNCONFIRMED: usize = 1_000;

/// The most channels that publish at once: far fewer than a connection allows.
const MAX_CHANNELS: usize = 256;

/// The most bytes that are being published. Further jobs get no message.
const MAX_PENDING_BYTES: usize = 64 * 1024 * 1024;

/// Publishes messages with confirms, and runs background tasks that do.
#[derive(Debug)]
pub(crate) struct Publisher {
    pending_bytes: AtomicUsize,
    /// Jobs without a message because publishing failed.
    lost: AtomicU64,
    /// The last attempt to publish failed.
    fails: AtomicBool,
    connection: Arc<AmqpConnection>,
    topology: Arc<Topology>,
    /// Channels in confirm mode, without unconfirmed messages.
    idle: Mutex<Vec<AmqpChannel>>,
    channels: Semaphore,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Publisher {
    pub(crate) fn new(connection: Arc<AmqpConnection>, topology: Arc<Topology>) -> Self {
        Self {
            connection,
            topology,
            idle: Mutex::default(),
            channels: Semaphore::new(MAX_CHANNELS),
            pending_bytes: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            fails: AtomicBool::new(false),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Publishes in the background, even if the caller gives up. Failures are counted and logged:
    /// without a message, jobs run from the log.
    pub(crate) fn start_publishing(
        self: &Arc<Self>,
        jobs: Vec<PublishedJob>,
        now: Timestamp,
    ) -> Option<JoinHandle<()>> {
        if jobs.is_empty() || !self.has_messages() {
            return None;
        }
        let (count, size) = (jobs.len(), jobs.iter().map(PublishedJob::approx_size).sum());
        if self.pending_bytes.fetch_add(size, Ordering::Relaxed) > MAX_PENDING_BYTES {
            self.pending_bytes.fetch_sub(size, Ordering::Relaxed);
            self.count_lost(count, &"too many messages are not confirmed yet");
            return None;
        }
        let publisher = Arc::clone(self);
        Some(self.tasks.spawn(async move {
            let publishing = publisher.publish(jobs, now);
            match publisher.stop.run_until_cancelled(publishing).await {
                Some(Ok(())) => publisher.fails.store(false, Ordering::Relaxed),
                Some(Err(error)) => publisher.count_lost(count, &error),
                None => {}
            }
            publisher.pending_bytes.fetch_sub(size, Ordering::Relaxed);
        }))
    }

    /// Warns only about the first of consecutive failures.
    fn count_lost(&self, jobs: usize, why: &dyn std::fmt::Display) {
        self.lost.fetch_add(jobs as u64, Ordering::Relaxed);
        if self.fails.swap(true, Ordering::Relaxed) {
            tracing::debug!(jobs, %why, "messages were not published; their jobs run from the log");
        } else {
            tracing::warn!(jobs, %why, "messages were not published; their jobs run from the log");
        }
    }

    pub(crate) fn has_messages(&self) -> bool {
        self.topology.ladder().has_messages()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Publishes jobs and waits for all confirmations.
    ///
    /// # Errors
    /// `Unavailable` if there is no connection, or a queue rejects a message, or none matches;
    /// `OutcomeUnknown` if confirmations are lost; `Full` during an alarm; `Config` if a permission
    /// or, with passive topology, a queue is missing.
    pub(crate) async fn publish(&self, jobs: Vec<PublishedJob>, now: Timestamp) -> Result<()> {
        if !self.has_messages() {
            return Ok(());
        }
        let messages = batch(jobs, now);
        match self.try_publish(&messages, now).await {
            Err(Failure { undeclared: true, error }) => {
                tracing::debug!(%error, "missing exchanges and queues are declared");
                self.topology.restore().await?;
                self.try_publish(&messages, now).await
            }
            published => published,
        }
        .map_err(|failure| failure.error)
    }

    async fn try_publish(&self, messages: &[JobMessage], now: Timestamp) -> Result<(), Failure> {
        for message in messages {
            self.topology.declare_ready(message.queue()).await?;
        }
        let outgoing = messages.iter().map(|message| self.outgoing(message, now));
        self.send("publish", outgoing).await
    }

    /// Publishes a foreign message to the dead-letter queue.
    ///
    /// # Errors
    /// The same as for [`publish`](Self::publish).
    pub(crate) async fn set_aside(&self, delivery: &Delivery) -> Result<()> {
        let outgoing = Outgoing {
            exchange: self.topology.names().dead(),
            key: delivery.routing_key.clone(),
            mandatory: true,
            body: delivery.data.clone(),
            properties: kept_properties(&delivery.properties),
        };
        self.send("set aside", std::iter::once(outgoing)).await.map_err(|failure| {
            if failure.undeclared {
                self.topology.report_missing();
            }
            failure.error
        })
    }

    fn outgoing(&self, message: &JobMessage, now: Timestamp) -> Outgoing {
        let route = self.topology.ladder().route(&Topic::of(message.queue()), message.due(), now);
        Outgoing {
            exchange: route.exchange,
            key: route.routing_key,
            // The plugin's exchange returns every delayed message as unroutable.
            mandatory: route.delay_ms.is_none(),
            body: message.body(),
            properties: message.properties(route.delay_ms),
        }
    }

    async fn send(
        &self,
        operation: &'static str,
        messages: impl Iterator<Item = Outgoing> + Send,
    ) -> Result<(), Failure> {
        // Never fails, because nobody closes the semaphore.
        let _permit = self.channels.acquire().await;
        // The client library would only buffer messages on a blocked connection.
        if let Some(reason) = self.connection.blocked() {
            let error = error::blocked(operation, self.connection.broker_info(), &reason);
            return Err(error.into());
        }
        let channel = self.channel(operation).await?;
        // A channel with a failure is not used again.
        if let Err(mut failure) = self.publish_on(&channel, operation, messages).await {
            failure.undeclared |= !channel.is_open() && self.connection.failure().is_none();
            return Err(failure);
        }
        self.idle.lock().await.push(channel);
        Ok(())
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = Result<()>> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            if let Some(Err(error)) = stop.run_until_cancelled(task).await {
                tracing::warn!(%error, "messages were not published; their jobs run from the log");
            }
        });
    }

    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Returns an idle channel, or opens another one.
    async fn channel(&self, operation: &'static str) -> Result<AmqpChannel> {
        let mut idle = self.idle.lock().await;
        while let Some(channel) = idle.pop() {
            if channel.is_open() {
                return Ok(channel);
            }
        }
        drop(idle);
        let channel = self.connection.channel(operation).await?;
        channel.confirm_select().await.map_err(|error| self.error(operation, &error))?;
        Ok(channel)
    }

    async fn publish_on(
        &self,
        channel: &AmqpChannel,
        operation: &'static str,
        messages: impl Iterator<Item = Outgoing> + Send,
    ) -> Result<(), Failure> {
        let mut unconfirmed = VecDeque::new();
        for message in messages {
            if unconfirmed.len() == MAX_UNCONFIRMED
                && let Some(oldest) = unconfirmed.pop_front()
            {
                self.confirmed(operation, oldest).await?;
            }
            let Outgoing { exchange, key, mandatory, body, properties } = message;
            let publishing = channel.publish(exchange, key, mandatory, &body, properties);
            unconfirmed.push_back(publishing.await.map_err(|error| self.error(operation, &error))?);
        }
        for confirm in unconfirmed {
            self.confirmed(operation, confirm).await?;
        }
        Ok(())
    }

    async fn confirmed(
        &self,
        operation: &'static str,
        confirm: Reply<Confirmation>,
    ) -> Result<(), Failure> {
        let confirmation =
            confirm.received().await.map_err(|error| self.error(operation, &error))?;
        match unconfirmed(operation, self.connection.broker_info(), &confirmation) {
            None => Ok(()),
            Some(error) => {
                // A message is returned if the queue or its binding was deleted.
                Err(Failure { error, undeclared: matches!(confirmation, Confirmation::Ack(_)) })
            }
        }
    }

    fn error(&self, operation: &'static str, error: &lapin::Error) -> Error {
        from_lapin(operation, LostReply::OutcomeUnknown, self.connection.broker_info(), error)
    }
}

struct Outgoing {
    exchange: ShortString,
    key: ShortString,
    mandatory: bool,
    body: Vec<u8>,
    properties: BasicProperties,
}

/// Omits a foreign message's time to live, which would delete it, and its user, which the broker
/// compares with this connection's.
fn kept_properties(foreign: &BasicProperties) -> BasicProperties {
    let mut kept = BasicProperties::default().with_delivery_mode(2);
    macro_rules! keep {
        ($($get:ident $with:ident),+) => {
            $(if let Some(value) = foreign.$get() {
                kept = kept.$with(value.clone());
            })+
        };
    }
    keep!(content_type with_content_type, content_encoding with_content_encoding);
    keep!(headers with_headers, kind with_type, message_id with_message_id);
    keep!(correlation_id with_correlation_id, reply_to with_reply_to);
    keep!(timestamp with_timestamp, app_id with_app_id);
    kept
}

struct Failure {
    error: Error,
    /// An exchange, queue or binding is missing.
    undeclared: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, undeclared: false }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
