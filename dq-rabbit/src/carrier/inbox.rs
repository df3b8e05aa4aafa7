//! Receives what comes out of the ladder, and sorts it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use dq_core::{Clock, QueueName, Result};
use futures_util::StreamExt;
use lapin::Consumer;
use lapin::message::Delivery;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::{FieldTable, ShortString};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::acks::{Acks, Ticket};
use super::message::{Carried, Carrier};
use crate::connect::{Link, Server};
use crate::error::{Effect, of_call};
use crate::names::Topic;
use crate::topology::Topology;

/// Between two attempts to receive.
const PAUSE: Duration = Duration::from_millis(200);

/// Decides what becomes of a message.
pub(crate) trait Sorter: Send + Sync + 'static {
    /// One of ours, with these jobs.
    fn carrier(self: Arc<Self>, jobs: Vec<Carried>, ticket: Ticket);

    /// Something else, that was found in this queue of the broker: in the ready queue of a queue, or
    /// among the dead letters.
    fn stranger(self: Arc<Self>, queue: Option<&QueueName>, delivery: Delivery, ticket: Ticket);
}

/// Receives for any number of queues, on one channel.
pub(crate) struct Inbox<S> {
    shared: Arc<Shared<S>>,
    tasks: TaskTracker,
}

struct Shared<S> {
    server: Arc<Server>,
    /// A connection of its own, made when it is first needed: a broker that cannot let us consume from a
    /// queue may end the connection for it, and whoever reads the log has nothing to do with that.
    link: OnceLock<Link>,
    topology: Arc<Topology>,
    clock: Arc<dyn Clock>,
    sorter: Arc<S>,
    prefetch: u16,
    channel: tokio::sync::Mutex<Option<Arc<Acks>>>,
    /// The queues that are received for; `None` stands for the dead letters.
    served: Mutex<HashSet<Option<QueueName>>>,
    stop: CancellationToken,
}

impl<S: Sorter> Inbox<S> {
    /// One that receives nothing yet.
    pub(crate) fn new(
        server: Arc<Server>,
        topology: Arc<Topology>,
        clock: Arc<dyn Clock>,
        prefetch: u16,
        sorter: Arc<S>,
    ) -> Self {
        let shared = Arc::new(Shared {
            server,
            link: OnceLock::new(),
            topology,
            clock,
            sorter,
            prefetch,
            channel: tokio::sync::Mutex::default(),
            served: Mutex::default(),
            stop: CancellationToken::new(),
        });
        Self { shared, tasks: TaskTracker::new() }
    }

    /// Receives for this queue from now on, and what is left in the queue of dead letters.
    pub(crate) fn serve(&self, queue: &QueueName) {
        let new = {
            let mut served = self.shared.served();
            [Some(queue.clone()), None]
                .into_iter()
                .filter(|place| !served.contains(place) && served.insert(place.clone()))
                .collect::<Vec<_>>()
        };
        for place in new {
            let task = Arc::clone(&self.shared).receive(place);
            let stop = self.shared.stop.clone();
            self.tasks.spawn(async move { stop.run_until_cancelled(task).await });
        }
    }

    /// Receives no more. What is in hand comes again elsewhere.
    pub(crate) async fn close(&self) {
        self.shared.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        if let Some(link) = self.shared.link.get() {
            link.close().await;
        }
    }
}

impl<S> Drop for Inbox<S> {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl<S> std::fmt::Debug for Inbox<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

impl<S: Sorter> Shared<S> {
    /// Receives from one queue until it is dropped.
    async fn receive(self: Arc<Self>, place: Option<QueueName>) {
        loop {
            match self.attach(place.as_ref()).await {
                Ok((acks, consumer)) => self.drain(place.as_ref(), &acks, consumer).await,
                Err(error) => tracing::debug!(%error, queue = ?place, "nothing is received now"),
            }
            self.clock.sleep(PAUSE).await;
            // The queue may have been deleted. Whoever asks for one that is not there loses the channel,
            // and with it all who receive.
            if let Err(error) = self.topology.restore().await {
                tracing::debug!(%error, "queues cannot be declared now");
            }
        }
    }

    async fn attach(&self, place: Option<&QueueName>) -> Result<(Arc<Acks>, Consumer)> {
        let name: ShortString = match place {
            Some(queue) => {
                self.topology.ready(queue).await?;
                self.topology.names().ready(&Topic::of(queue))
            }
            None => self.topology.names().dead(),
        };
        let acks = self.channel().await?;
        let consumer = acks
            .channel()
            .basic_consume(name, "".into(), BasicConsumeOptions::default(), FieldTable::default())
            .await
            .map_err(|error| of_call("receive", Effect::None, &self.server, &error))?;
        Ok((acks, consumer))
    }

    fn link(&self) -> &Link {
        self.link.get_or_init(|| Link::start(Arc::clone(&self.server), "receive"))
    }

    /// The one channel, opened anew if it is gone.
    async fn channel(&self) -> Result<Arc<Acks>> {
        let mut present = self.channel.lock().await;
        if let Some(acks) = &*present
            && acks.channel().status().connected()
        {
            return Ok(Arc::clone(acks));
        }
        let channel = self.link().channel("receive").await?;
        channel
            .basic_qos(self.prefetch, BasicQosOptions::default())
            .await
            .map_err(|error| of_call("receive", Effect::None, &self.server, &error))?;
        let acks = Acks::new(channel);
        let stop = self.stop.clone();
        tokio::spawn({
            let acks = Arc::clone(&acks);
            async move { stop.run_until_cancelled(acks.run()).await }
        });
        *present = Some(Arc::clone(&acks));
        Ok(acks)
    }

    async fn drain(&self, place: Option<&QueueName>, acks: &Arc<Acks>, mut consumer: Consumer) {
        while let Some(Ok(delivery)) = consumer.next().await {
            let ticket = acks.arrived(delivery.delivery_tag);
            let sorter = Arc::clone(&self.sorter);
            match Carrier::read(&delivery) {
                Some(jobs) => sorter.carrier(jobs, ticket),
                None => sorter.stranger(place, delivery, ticket),
            }
        }
    }

    fn served(&self) -> MutexGuard<'_, HashSet<Option<QueueName>>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
