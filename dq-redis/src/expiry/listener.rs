//! Handles events for expired keys. An expiry key wakes listeners; a probe key completes the probe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dq_core::{Listeners, Timestamp};
use tokio::sync::Notify;

use super::expiry_keys::KeyNames;
use super::probe::ExpiryProbe;
use crate::connect::OnMessage;

#[derive(Debug)]
pub(super) struct ExpiryEvents {
    listeners: Arc<Listeners>,
    names: KeyNames,
    pub(super) probe: ExpiryProbe,
    pub(super) connected: Notify,
}

impl ExpiryEvents {
    pub(super) fn new(listeners: Arc<Listeners>, names: KeyNames, probe: ExpiryProbe) -> Self {
        Self { listeners, names, probe, connected: Notify::new() }
    }

    /// Thousands of other programs' keys may expire each second; each costs only a comparison.
    fn key_expired(&self, key: &[u8]) {
        match self.names.parse(key) {
            Some((queue, due)) => self.listeners.wake(&queue, due),
            None => self.probe.key_expired(key),
        }
    }
}

/// The connection to one node, which receives the events for its keys.
#[derive(Debug)]
pub(super) struct NodeConnection {
    events: Arc<ExpiryEvents>,
    is_connected: AtomicBool,
}

impl NodeConnection {
    pub(super) fn new(events: Arc<ExpiryEvents>) -> Self {
        Self { events, is_connected: AtomicBool::new(false) }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Acquire)
    }
}

impl OnMessage for NodeConnection {
    fn message(&self, _channel: &str, key: &[u8]) {
        self.events.key_expired(key);
    }

    fn connected(&self) {
        self.is_connected.store(true, Ordering::Release);
        // Events may have been missed.
        self.events.listeners.wake_all(Timestamp::EPOCH);
        self.events.connected.notify_one();
    }

    fn disconnected(&self) {
        self.is_connected.store(false, Ordering::Release);
    }
}
