//! Handles events for expired keys. An expiry key wakes listeners; a probe key completes the probe.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{ClaimParams, Claimed, Listeners, QueueName, Timestamp};
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
    pub(super) claimed: ClaimedUntil,
}

impl ExpiryEvents {
    pub(super) fn new(listeners: Arc<Listeners>, names: KeyNames, probe: ExpiryProbe) -> Self {
        Self { listeners, names, probe, connected: Notify::new(), claimed: ClaimedUntil::default() }
    }

    /// In a busy database thousands of other programs' keys expire each second; each costs only a
    /// comparison.
    fn key_expired(&self, key: &[u8]) {
        if let Some((queue, due)) = self.names.parse(key) {
            if !self.claimed.covers(&queue, due) {
                self.listeners.wake(&queue, due);
            }
        } else {
            self.probe.key_expired(key);
        }
    }
}

/// One per Redis node.
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

/// Per queue, the time up to which no due job was left. The runner's timer nearly always fires
/// before the event arrives; without this, the event would cause a second claim for each job.
#[derive(Debug, Default)]
pub(super) struct ClaimedUntil(Mutex<HashMap<QueueName, Timestamp>>);

impl ClaimedUntil {
    pub(super) fn record(&self, params: &ClaimParams<'_>, claimed: &Claimed) {
        if claimed.next_due.is_some_and(|due| due <= claimed.now) {
            return;
        }
        let mut until = lock(&self.0);
        for want in params.wants {
            match until.get_mut(&want.queue) {
                // Not the later time: the server's clock may have been set back.
                Some(until) => *until = claimed.now,
                None => {
                    until.insert(want.queue.clone(), claimed.now);
                }
            }
        }
    }

    fn covers(&self, queue: &QueueName, due: Timestamp) -> bool {
        lock(&self.0).get(queue).is_some_and(|until| due <= *until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dq_core::Want;

    use super::*;

    #[test]
    fn an_event_for_claimed_jobs_causes_no_wake_up() {
        let [queue, other] = ["q", "other"].map(|name| QueueName::new(name).unwrap());
        let at = Timestamp::from_millis;
        let wants = [Want::new(queue.clone(), 1, Duration::from_secs(1))];
        let params = ClaimParams::new(&wants, 1, "w");
        let claimed = |next_due| Claimed::new(Vec::new(), next_due, at(100));
        let until = ClaimedUntil::default();

        until.record(&params, &claimed(Some(at(100))));
        assert!(!until.covers(&queue, at(90)), "the claim left due jobs");
        until.record(&params, &claimed(Some(at(101))));
        assert!(until.covers(&queue, at(100)));
        assert!(!until.covers(&queue, at(101)));
        assert!(!until.covers(&other, at(100)));
    }
}
