//! Wake-ups: scripts publish a due time when its job becomes the first due in its partition, for
//! all; and a time and a worker when that one may start a job in a queue with limits. This module
//! wakes this process's listeners.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{Listeners, QueueName, Timestamp, Wakeups};

use crate::connect::{OnMessage, Server, Source, Subscriber};
use crate::keys::Partition;

#[derive(Debug)]
pub(crate) struct WakeupRouter {
    routes: Arc<ChannelRoutes>,
    subscriber: Subscriber,
}

#[derive(Debug, Default)]
struct ChannelRoutes {
    listeners: Arc<Listeners>,
    queues: Mutex<HashMap<String, QueueName>>,
}

impl WakeupRouter {
    pub(crate) fn start(server: Arc<Server>) -> Self {
        let routes = Arc::new(ChannelRoutes::default());
        let on_message = Arc::clone(&routes) as Arc<dyn OnMessage>;
        Self { routes, subscriber: Subscriber::start(Source::Any(server), on_message) }
    }

    /// Layers over this backend wake these, too.
    pub(crate) fn listeners(&self) -> &Arc<Listeners> {
        &self.routes.listeners
    }

    /// The listener gets all messages from now on, unless the server cannot be reached.
    pub(crate) async fn listen(&self, partitions: &[Arc<Partition>], worker: &str) -> Wakeups {
        let queues: Vec<QueueName> =
            partitions.iter().map(|partition| partition.queue.clone()).collect();
        let wakeups = self.routes.listeners.listen(&queues, worker);
        let channels = || partitions.iter().map(|partition| partition.channel.clone());
        lock(&self.routes.queues).extend(channels().zip(queues));
        self.subscriber.subscribe(channels().collect()).await;
        wakeups
    }

    pub(crate) fn close(&self) {
        self.subscriber.close();
    }
}

impl OnMessage for ChannelRoutes {
    fn message(&self, channel: &str, payload: &[u8]) {
        let queues = lock(&self.queues);
        let Some(queue) = queues.get(channel) else { return };
        let text = str::from_utf8(payload).unwrap_or_default();
        let (due, worker) = match text.split_once(' ') {
            Some((due, worker)) => (due, Some(worker)),
            None => (text, None),
        };
        // A message from another program wakes the listeners at once, which is harmless.
        let due = Timestamp::from_millis(due.parse().unwrap_or(0));
        match worker {
            // Most likely it listens in another process.
            Some(worker) => _ = self.listeners.wake_if_present(queue, worker, due),
            None => self.listeners.wake(queue, due),
        }
    }

    fn connected(&self) {
        // Messages may have been missed.
        self.listeners.wake_all(Timestamp::EPOCH);
    }
}
