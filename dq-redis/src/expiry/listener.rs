//! Handles events for expired keys. An expiry key wakes listeners; a probe key completes the probe.

use std::sync::Arc;

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
}

impl OnMessage for ExpiryEvents {
    /// Thousands of other programs' keys may expire each second; each costs only a comparison.
    fn message(&self, _channel: &str, key: &[u8]) {
        match self.names.parse(key) {
            Some((queue, due)) => self.listeners.wake(&queue, due),
            None => self.probe.key_expired(key),
        }
    }

    fn connected(&self) {
        // Events may have been missed.
        self.listeners.wake_all(Timestamp::EPOCH);
        self.connected.notify_one();
    }
}
