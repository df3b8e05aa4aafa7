//! What is heard: keys that expire become wake-ups, and our canary is told from those of others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dq_core::{ClaimParams, Claimed, Listeners, QueueName, Timestamp};
use tokio::sync::Notify;

use super::alarm::Names;
use super::canary::Cage;
use crate::connect::OnMessage;

/// What all connections of one backend hear.
#[derive(Debug)]
pub(super) struct Ears {
    listeners: Arc<Listeners>,
    alarms: Names,
    pub(super) cage: Cage,
    /// Told when a connection is there, for the first time or again.
    pub(super) resumed: Notify,
    looked: Looked,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Ear {
    ears: Arc<Ears>,
    up: AtomicBool,
}

impl Ears {
    pub(super) fn new(listeners: Arc<Listeners>, alarms: Names, cage: Cage) -> Self {
        Self { listeners, alarms, cage, resumed: Notify::new(), looked: Looked::default() }
    }

    /// Notes what a claim has seen.
    pub(super) fn saw(&self, params: &ClaimParams<'_>, claimed: &Claimed) {
        self.looked.note(params, claimed);
    }

    /// A key expired. A busy database loses thousands a second that are not ours, so those cost
    /// no more than a comparison.
    fn expired(&self, key: &[u8]) {
        if let Some((queue, due)) = self.alarms.read(key) {
            if !self.looked.covers(&queue, due) {
                self.listeners.wake(&queue, due);
            }
        } else {
            self.cage.heard(key);
        }
    }
}

impl Ear {
    pub(super) fn new(ears: Arc<Ears>) -> Self {
        Self { ears, up: AtomicBool::new(false) }
    }

    /// Whether the connection is there.
    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }
}

impl OnMessage for Ear {
    fn message(&self, _channel: &str, key: &[u8]) {
        self.ears.expired(key);
    }

    fn connected(&self) {
        self.up.store(true, Ordering::Release);
        // Alarms may have expired unheard.
        self.ears.listeners.wake_all(Timestamp::EPOCH);
        self.ears.resumed.notify_one();
    }

    fn disconnected(&self) {
        self.up.store(false, Ordering::Release);
    }
}

/// Until when each queue was looked through. The timer is nearly always there before the event, and
/// a wake-up for what a claim has brought already would cost a second claim per job.
#[derive(Debug, Default)]
struct Looked(Mutex<HashMap<QueueName, Timestamp>>);

impl Looked {
    fn note(&self, params: &ClaimParams<'_>, claimed: &Claimed) {
        if claimed.next_due.is_some_and(|due| due <= claimed.now) {
            return;
        }
        let mut until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for want in params.wants {
            match until.get_mut(&want.queue) {
                Some(until) => *until = claimed.now,
                None => drop(until.insert(want.queue.clone(), claimed.now)),
            }
        }
    }

    fn covers(&self, queue: &QueueName, due: Timestamp) -> bool {
        let until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.get(queue).is_some_and(|until| due <= *until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dq_core::Want;

    use super::*;

    #[test]
    fn what_a_claim_has_brought_needs_no_wake_up() {
        let [queue, other] = ["q", "other"].map(|name| QueueName::new(name).unwrap());
        let at = Timestamp::from_millis;
        let wants = [Want { queue: queue.clone(), max: 1, lease_for: Duration::from_secs(1) }];
        let params = ClaimParams { wants: &wants, limit: 1, worker: "w" };
        let claimed = |next_due| Claimed { jobs: Vec::new(), next_due, now: at(100) };
        let looked = Looked::default();

        looked.note(&params, &claimed(Some(at(100))));
        assert!(!looked.covers(&queue, at(90)), "more is due than the claim has brought");
        looked.note(&params, &claimed(Some(at(101))));
        assert!(looked.covers(&queue, at(100)));
        assert!(!looked.covers(&queue, at(101)));
        assert!(!looked.covers(&other, at(100)));
    }
}
