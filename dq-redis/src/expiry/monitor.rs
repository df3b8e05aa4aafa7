//! Monitors whether keyspace notifications work: at the start, after each reconnect, and for
//! `check`.

use std::sync::{Arc, Mutex};

use dq_core::sync::lock;

use super::check::Notifications;
use super::configure::configure;
use super::listener::ExpiryEvents;
use super::subscriptions::Subscriptions;
use crate::connect::Link;

#[derive(Debug)]
pub(super) struct NotificationMonitor {
    pub(super) subscriptions: Subscriptions,
    link: Arc<Link>,
    events: Arc<ExpiryEvents>,
    configure: bool,
    state: Mutex<Notifications>,
}

impl NotificationMonitor {
    pub(super) async fn start(link: Arc<Link>, events: Arc<ExpiryEvents>, configure: bool) -> Self {
        let subscriptions = Subscriptions::start(Arc::clone(&link), Arc::clone(&events)).await;
        Self { subscriptions, link, events, configure, state: Mutex::new(Notifications::Unknown) }
    }

    /// Keeps the subscriptions up and probes after each connect. Never returns.
    pub(super) async fn run(self: Arc<Self>) {
        let probe_on_connect = async {
            loop {
                self.events.connected.notified().await;
                self.probe().await;
            }
        };
        tokio::join!(self.subscriptions.follow_primaries(), probe_on_connect);
    }

    pub(super) fn state(&self) -> Notifications {
        lock(&self.state).clone()
    }

    /// Configures the server if set, and probes. Takes about two seconds without an event.
    pub(super) async fn probe(&self) -> Notifications {
        // At every probe, because a restarted server or a new cluster node has its own settings.
        let refusal = if self.configure { configure(&self.link).await.err() } else { None };
        let received = if self.subscriptions.all_connected() {
            self.events.probe.run().await.ok()
        } else {
            None
        };
        let state = match (received, refusal) {
            (Some(true), _) => Notifications::Working,
            // A lost connection says nothing about the server's settings.
            _ if !self.subscriptions.all_connected() => Notifications::Unknown,
            (Some(false), Some(message)) => Notifications::Refused(message),
            (Some(false), None) => Notifications::Off,
            (None, _) => Notifications::Unknown,
        };
        let mut last = lock(&self.state);
        if *last != state {
            match state.finding() {
                Some(finding) => tracing::warn!("{finding}"),
                None => tracing::debug!("Redis: notifications of expired keys work"),
            }
            *last = state.clone();
        }
        state
    }
}
