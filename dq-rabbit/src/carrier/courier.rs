//! Sends carriers: confirmed, in windows.

use std::collections::VecDeque;
use std::sync::Arc;

use dq_core::{Error, Result, Timestamp};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Confirmation, PublisherConfirm};
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::bundle::bundle;
use super::message::{Carried, Carrier};
use crate::connect::Link;
use crate::error::{Effect, nacked, of_call, returned, timed_out};
use crate::ladder::Ladder;
use crate::names::Topic;
use crate::topology::Topology;

/// Messages that wait for their confirmation at once.
const WINDOW: usize = 1_000;

/// Channels at once: far fewer than a connection may have.
const CHANNELS: usize = 256;

/// Sends carriers, on channels of its own.
#[derive(Debug)]
pub(crate) struct Courier {
    link: Arc<Link>,
    topology: Arc<Topology>,
    ladder: Ladder,
    /// Free channels: each has sent all that it was given, and has nothing under way.
    channels: Mutex<Vec<Channel>>,
    sending: Semaphore,
    errands: TaskTracker,
    stop: CancellationToken,
}

impl Courier {
    pub(crate) fn new(link: Arc<Link>, topology: Arc<Topology>) -> Self {
        let ladder = topology.ladder();
        Self {
            link,
            topology,
            ladder,
            channels: Mutex::default(),
            sending: Semaphore::new(CHANNELS),
            errands: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Sends jobs; on `Ok` the broker has them all.
    ///
    /// # Errors
    /// Those of the connection, `Unavailable` for what a queue refused, and what has no queue to go to.
    pub(crate) async fn send(
        &self,
        operation: &'static str,
        jobs: Vec<Carried>,
        now: Timestamp,
    ) -> Result<()> {
        let carriers = bundle(jobs, now);
        match self.try_to_send(operation, &carriers, now).await {
            Err(Failure { deleted: true, error }) => {
                tracing::warn!(%error, "exchanges and queues are declared again");
                self.topology.restore().await?;
                self.try_to_send(operation, &carriers, now).await
            }
            tried => tried,
        }
        .map_err(|failure| failure.error)
    }

    async fn try_to_send(
        &self,
        operation: &'static str,
        carriers: &[Carrier],
        now: Timestamp,
    ) -> Result<(), Failure> {
        if carriers.is_empty() {
            return Ok(());
        }
        let mut last = None;
        for carrier in carriers {
            let queue = carrier.queue();
            if last != Some(queue) {
                self.topology.ready(queue).await?;
                last = Some(queue);
            }
        }
        // Fails only if it is closed, which it never is.
        let _one = self.sending.acquire().await;
        // What is published while the broker takes nothing would only lie in our memory.
        if let Some(why) = self.link.blocked() {
            return Err(crate::error::blocked(operation, self.link.server(), &why).into());
        }
        let channel = match self.free().await {
            Some(channel) => channel,
            None => self.open(operation).await?,
        };
        // A channel on which something failed is not used again.
        if let Err(mut failure) = self.send_on(&channel, operation, carriers, now).await {
            // The broker ends just the channel if there is no such exchange.
            failure.deleted |= !channel.status().connected() && self.link.failure().is_none();
            return Err(failure);
        }
        self.channels.lock().await.push(channel);
        Ok(())
    }

    /// Sends jobs in the background; what fails is only told in the log of the program, since whoever lacks
    /// a carrier finds the job by itself, a little later.
    pub(crate) fn post(self: &Arc<Self>, jobs: Vec<Carried>, now: Timestamp) {
        if jobs.is_empty() {
            return;
        }
        self.errand(|courier| async move { courier.send("carry", jobs, now).await });
    }

    /// Does something in the background, until the courier is closed.
    pub(crate) fn errand<F: Future<Output = Result<()>> + Send + 'static>(
        self: &Arc<Self>,
        errand: impl FnOnce(Arc<Self>) -> F,
    ) {
        let stop = self.stop.clone();
        let errand = errand(Arc::clone(self));
        self.errands.spawn(async move {
            if let Some(Err(error)) = stop.run_until_cancelled(errand).await {
                tracing::warn!(%error, "carriers were not sent; their jobs run from the log");
            }
        });
    }

    /// Ends what is under way.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.errands.close();
        self.errands.wait().await;
    }

    async fn free(&self) -> Option<Channel> {
        let mut channels = self.channels.lock().await;
        while let Some(channel) = channels.pop() {
            if channel.status().connected() {
                return Some(channel);
            }
        }
        None
    }

    async fn open(&self, operation: &'static str) -> Result<Channel> {
        let channel = self.link.channel(operation).await?;
        let selected = channel.confirm_select(ConfirmSelectOptions::default()).await;
        selected.map_err(|error| self.told(operation, &error))?;
        Ok(channel)
    }

    async fn send_on(
        &self,
        channel: &Channel,
        operation: &'static str,
        carriers: &[Carrier],
        now: Timestamp,
    ) -> Result<(), Failure> {
        let mut waiting = VecDeque::with_capacity(WINDOW.min(carriers.len()));
        for carrier in carriers {
            if waiting.len() == WINDOW
                && let Some(oldest) = waiting.pop_front()
            {
                self.confirmed(operation, oldest).await?;
            }
            let route = self.ladder.route(&Topic::of(carrier.queue()), carrier.due(), now);
            // Of what the plugin keeps for later, the broker says that no queue has taken it.
            let mandatory = route.delay_ms.is_none();
            let confirm = channel
                .basic_publish(
                    route.exchange,
                    route.routing_key,
                    BasicPublishOptions { mandatory, ..BasicPublishOptions::default() },
                    &carrier.body(),
                    carrier.properties(route.delay_ms),
                )
                .await
                .map_err(|error| self.told(operation, &error))?;
            waiting.push_back(confirm);
        }
        for confirm in waiting {
            self.confirmed(operation, confirm).await?;
        }
        Ok(())
    }

    async fn confirmed(
        &self,
        operation: &'static str,
        confirm: PublisherConfirm,
    ) -> Result<(), Failure> {
        let server = self.link.server();
        match tokio::time::timeout(server.response_timeout, confirm).await {
            Ok(Ok(Confirmation::Ack(None) | Confirmation::NotRequested)) => Ok(()),
            Ok(Ok(Confirmation::Nack(_))) => Err(nacked(operation, server).into()),
            Ok(Ok(Confirmation::Ack(Some(message)))) => {
                // Its queue was deleted.
                Err(Failure { error: returned(operation, server, &message), deleted: true })
            }
            Ok(Err(error)) => Err(self.told(operation, &error).into()),
            Err(_) => Err(match self.link.blocked() {
                Some(why) => crate::error::blocked(operation, server, &why),
                None => timed_out(operation, Effect::Lasting, server),
            }
            .into()),
        }
    }

    fn told(&self, operation: &'static str, error: &lapin::Error) -> Error {
        of_call(operation, Effect::Lasting, self.link.server(), error)
    }
}

/// Why carriers were not sent.
struct Failure {
    error: Error,
    /// Something is not there that was declared.
    deleted: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, deleted: false }
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
