//! The probe: sets a key `{prefix}:canary:<random>` that expires at once, and waits for its event,
//! to find out whether the server's keyspace notifications are on.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{Entropy, Result};
use tokio::sync::oneshot;

use crate::connect::{Effect, Link};

const OPERATION: &str = "probe";

/// Time to live of a probe key.
const TIME_TO_LIVE: Duration = Duration::from_millis(50);

/// Delay before the key is touched, a little more than its time to live. Redis expires a key late
/// by itself, but at once when it is touched.
const TOUCH_AFTER: Duration = Duration::from_millis(60);

/// How long to wait for the event after the touch.
const EVENT_TIMEOUT: Duration = Duration::from_secs(1);

/// Sets probe keys and waits for their events, one at a time.
#[derive(Debug)]
pub(super) struct ExpiryProbe {
    /// The prefix of all probe keys, those of other processes included.
    key_prefix: String,
    link: Arc<Link>,
    entropy: Arc<Entropy>,
    one_at_a_time: tokio::sync::Mutex<()>,
    /// The key of the current probe, and the sender that its event uses.
    pending: Mutex<Option<(String, oneshot::Sender<()>)>>,
}

impl ExpiryProbe {
    pub(super) fn new(prefix: &str, link: Arc<Link>, entropy: Arc<Entropy>) -> Self {
        Self {
            key_prefix: format!("{{{prefix}}}:canary:"),
            link,
            entropy,
            one_at_a_time: tokio::sync::Mutex::default(),
            pending: Mutex::default(),
        }
    }

    /// Lets a key expire, and returns whether its event was received. Tries twice before it returns
    /// `false`, since a busy machine may be late with the first event.
    pub(super) async fn run(&self) -> Result<bool> {
        let _guard = self.one_at_a_time.lock().await;
        Ok(self.try_once().await? || self.try_once().await?)
    }

    /// One probe with a new key.
    async fn try_once(&self) -> Result<bool> {
        let key = format!("{}{:032x}", self.key_prefix, self.entropy.bits());
        let (sender, event) = oneshot::channel();
        *lock(&self.pending) = Some((key.clone(), sender));
        let result = self.expire(&key, event).await;
        *lock(&self.pending) = None;
        result
    }

    /// Sets the key, touches it after its time to live, and waits for its event.
    async fn expire(&self, key: &str, event: oneshot::Receiver<()>) -> Result<bool> {
        let mut set = redis::cmd("SET");
        set.arg(key).arg("").arg("PX").arg(TIME_TO_LIVE.as_millis() as u64);
        self.link.run(OPERATION, Effect::None, &set).await?;
        tokio::time::sleep(TOUCH_AFTER).await;
        let mut touch = redis::cmd("TOUCH");
        touch.arg(key);
        self.link.run(OPERATION, Effect::None, &touch).await?;
        Ok(matches!(tokio::time::timeout(EVENT_TIMEOUT, event).await, Ok(Ok(()))))
    }

    /// Handles the event of any key. Those of other processes' probes and of other keys are
    /// ignored.
    pub(super) fn key_expired(&self, key: &[u8]) {
        if !key.starts_with(self.key_prefix.as_bytes()) {
            return;
        }
        let mut pending = lock(&self.pending);
        if pending.as_ref().is_some_and(|(own, _)| own.as_bytes() == key)
            && let Some((_, sender)) = pending.take()
        {
            sender.send(()).ok();
        }
    }
}
