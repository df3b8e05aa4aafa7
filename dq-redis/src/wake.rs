//! Hints: what the server publishes becomes a wake-up of those who listen in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use dq_core::{Listeners, QueueName, Timestamp, Wakeups};

use crate::connect::{OnMessage, Server, Source, Subscriber};
use crate::keys::Lane;

/// Who listens to which queue, and by which channel its hints come.
#[derive(Debug)]
pub(crate) struct Switchboard {
    routes: Arc<Routes>,
    subscriber: Subscriber,
}

#[derive(Debug, Default)]
struct Routes {
    listeners: Arc<Listeners>,
    queues: Mutex<HashMap<String, QueueName>>,
}

impl Switchboard {
    pub(crate) fn start(server: Arc<Server>) -> Self {
        let routes = Arc::new(Routes::default());
        let on_message = Arc::clone(&routes) as Arc<dyn OnMessage>;
        Self { routes, subscriber: Subscriber::start(Source::Any(server), on_message) }
    }

    /// Who listens, for hints that come by another way.
    pub(crate) fn listeners(&self) -> &Arc<Listeners> {
        &self.routes.listeners
    }

    /// Opens a listener; hints are passed on from when this returns.
    pub(crate) async fn listen(&self, lanes: &[Arc<Lane>]) -> Wakeups {
        let queues: Vec<QueueName> = lanes.iter().map(|lane| lane.queue.clone()).collect();
        let wakeups = self.routes.listeners.listen(&queues);
        {
            let mut known = self.routes.queues.lock().unwrap_or_else(PoisonError::into_inner);
            known.extend(lanes.iter().map(|lane| (lane.channel.clone(), lane.queue.clone())));
        }
        self.subscriber.hear(lanes.iter().map(|lane| lane.channel.clone()).collect()).await;
        wakeups
    }

    /// Ends the connection that listens.
    pub(crate) fn close(&self) {
        self.subscriber.close();
    }
}

impl OnMessage for Routes {
    fn message(&self, channel: &str, payload: &[u8]) {
        let known = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = known.get(channel) else { return };
        // Who publishes something else on our channel wakes us at once, which does no harm.
        let due = str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
        self.listeners.wake(queue, Timestamp::from_millis(due.unwrap_or(0)));
    }

    fn resumed(&self) {
        self.listeners.wake_all(Timestamp::EPOCH);
    }
}
