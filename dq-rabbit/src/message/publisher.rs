//! Publishes job messages with publisher confirms.

use std::collections::VecDeque;
use std::sync::Arc;

use dq_core::{Error, Result, Timestamp};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Confirmation, PublisherConfirm};
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::batch::batch;
use super::job_message::{JobMessage, PublishedJob};
use crate::connect::AmqpConnection;
use crate::error::{self, LostReply, from_lapin, nacked, returned, timed_out};
use crate::ladder::Ladder;
use crate::names::Topic;
use crate::topology::Topology;

/// Maximum number of unconfirmed messages of a call.
const MAX_UNCONFIRMED: usize = 1_000;

/// Maximum number of channels in use: far fewer than a connection allows.
const MAX_CHANNELS: usize = 256;

/// Publishes job messages, and runs background tasks that do.
#[derive(Debug)]
pub(crate) struct Publisher {
    connection: Arc<AmqpConnection>,
    topology: Arc<Topology>,
    ladder: Ladder,
    /// Idle channels in confirm mode, without unconfirmed messages.
    idle: Mutex<Vec<Channel>>,
    channels: Semaphore,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Publisher {
    pub(crate) fn new(connection: Arc<AmqpConnection>, topology: Arc<Topology>) -> Self {
        let ladder = topology.ladder();
        Self {
            connection,
            topology,
            ladder,
            idle: Mutex::default(),
            channels: Semaphore::new(MAX_CHANNELS),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Publishes jobs, and waits until the broker has confirmed all of their messages.
    ///
    /// # Errors
    /// `Unavailable` if there is no connection, a queue rejects a message, or a message matches no
    /// queue; `OutcomeUnknown` if confirmations are lost; `Full` if the broker has a resource
    /// alarm; `Config` if a permission or, with passive topology, a queue is missing.
    pub(crate) async fn publish(
        &self,
        operation: &'static str,
        jobs: Vec<PublishedJob>,
        now: Timestamp,
    ) -> Result<()> {
        let messages = batch(jobs, now);
        match self.try_publish(operation, &messages, now).await {
            Err(Failure { undeclared: true, error }) => {
                tracing::warn!(%error, "exchanges and queues are declared again");
                self.topology.redeclare().await?;
                self.try_publish(operation, &messages, now).await
            }
            published => published,
        }
        .map_err(|failure| failure.error)
    }

    async fn try_publish(
        &self,
        operation: &'static str,
        messages: &[JobMessage],
        now: Timestamp,
    ) -> Result<(), Failure> {
        if messages.is_empty() {
            return Ok(());
        }
        let mut last = None;
        for message in messages {
            let queue = message.queue();
            if last != Some(queue) {
                self.topology.declare_ready(queue).await?;
                last = Some(queue);
            }
        }
        // Fails only for a closed semaphore; this one is never closed.
        let _permit = self.channels.acquire().await;
        // The client library would only buffer what is published on a blocked connection.
        if let Some(reason) = self.connection.blocked() {
            let error = error::blocked(operation, self.connection.broker_info(), &reason);
            return Err(error.into());
        }
        let channel = match self.idle_channel().await {
            Some(channel) => channel,
            None => self.open_channel(operation).await?,
        };
        // A channel on which something failed is not used again.
        if let Err(mut failure) = self.publish_on(&channel, operation, messages, now).await {
            // For an exchange that does not exist, the broker closes only the channel.
            failure.undeclared |=
                !channel.status().connected() && self.connection.failure().is_none();
            return Err(failure);
        }
        self.idle.lock().await.push(channel);
        Ok(())
    }

    /// Publishes jobs in the background. Failures are only logged, because jobs without a message
    /// run from the log, a little later.
    pub(crate) fn publish_in_background(self: &Arc<Self>, jobs: Vec<PublishedJob>, now: Timestamp) {
        if jobs.is_empty() {
            return;
        }
        let publisher = Arc::clone(self);
        self.spawn(async move { publisher.publish("publish", jobs, now).await });
    }

    /// Runs a background task, which is cancelled when the publisher is closed.
    pub(crate) fn spawn(&self, task: impl Future<Output = Result<()>> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            if let Some(Err(error)) = stop.run_until_cancelled(task).await {
                tracing::warn!(%error, "messages were not published; their jobs run from the log");
            }
        });
    }

    /// Cancels background tasks and waits until they have ended.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn idle_channel(&self) -> Option<Channel> {
        let mut idle = self.idle.lock().await;
        while let Some(channel) = idle.pop() {
            if channel.status().connected() {
                return Some(channel);
            }
        }
        None
    }

    async fn open_channel(&self, operation: &'static str) -> Result<Channel> {
        let channel = self.connection.channel(operation).await?;
        let selected = channel.confirm_select(ConfirmSelectOptions::default()).await;
        selected.map_err(|error| self.error(operation, &error))?;
        Ok(channel)
    }

    async fn publish_on(
        &self,
        channel: &Channel,
        operation: &'static str,
        messages: &[JobMessage],
        now: Timestamp,
    ) -> Result<(), Failure> {
        let mut unconfirmed = VecDeque::with_capacity(MAX_UNCONFIRMED.min(messages.len()));
        for message in messages {
            if unconfirmed.len() == MAX_UNCONFIRMED
                && let Some(oldest) = unconfirmed.pop_front()
            {
                self.confirmed(operation, oldest).await?;
            }
            let route = self.ladder.route(&Topic::of(message.queue()), message.due(), now);
            // The exchange of the plugin for delayed messages returns every delayed message as
            // unroutable.
            let mandatory = route.delay_ms.is_none();
            let confirm = channel
                .basic_publish(
                    route.exchange,
                    route.routing_key,
                    BasicPublishOptions { mandatory, ..BasicPublishOptions::default() },
                    &message.body(),
                    message.properties(route.delay_ms),
                )
                .await
                .map_err(|error| self.error(operation, &error))?;
            unconfirmed.push_back(confirm);
        }
        for confirm in unconfirmed {
            self.confirmed(operation, confirm).await?;
        }
        Ok(())
    }

    /// Waits until the broker has confirmed a message.
    async fn confirmed(
        &self,
        operation: &'static str,
        confirm: PublisherConfirm,
    ) -> Result<(), Failure> {
        let broker = self.connection.broker_info();
        match tokio::time::timeout(self.connection.response_timeout(), confirm).await {
            Ok(Ok(Confirmation::Ack(None) | Confirmation::NotRequested)) => Ok(()),
            Ok(Ok(Confirmation::Nack(_))) => Err(nacked(operation, broker).into()),
            Ok(Ok(Confirmation::Ack(Some(message)))) => {
                // The queue or its binding was deleted.
                Err(Failure { error: returned(operation, broker, &message), undeclared: true })
            }
            Ok(Err(error)) => Err(self.error(operation, &error).into()),
            Err(_) => Err(match self.connection.blocked() {
                Some(reason) => error::blocked(operation, broker, &reason),
                None => timed_out(operation, LostReply::OutcomeUnknown, broker),
            }
            .into()),
        }
    }

    fn error(&self, operation: &'static str, error: &lapin::Error) -> Error {
        from_lapin(operation, LostReply::OutcomeUnknown, self.connection.broker_info(), error)
    }
}

/// Why messages were not published or not confirmed.
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
