//! Finds out whether keyspace notifications are on: sets a key `{prefix}:canary:<random>` that
//! expires at once, and waits for its event.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{Entropy, Result};
use tokio::sync::oneshot;

use crate::connect::Link;
use crate::error::Effect;

const TIME_TO_LIVE: Duration = Duration::from_millis(50);

/// Redis expires a key late, but at once when it is touched after its time to live.
const TOUCH_AFTER: Duration = Duration::from_millis(60);

const EVENT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct ExpiryProbe {
    key_prefix: String,
    link: Arc<Link>,
    entropy: Arc<Entropy>,
    one_at_a_time: tokio::sync::Mutex<()>,
    /// The running probe's key and its waiter.
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

    /// Tries twice before it returns `false`, because a busy machine may be late with the first
    /// event.
    pub(super) async fn run(&self) -> Result<bool> {
        let _guard = self.one_at_a_time.lock().await;
        Ok(self.try_once().await? || self.try_once().await?)
    }

    async fn try_once(&self) -> Result<bool> {
        let key = format!("{}{:032x}", self.key_prefix, self.entropy.bits());
        let (sender, event) = oneshot::channel();
        *lock(&self.pending) = Some((key.clone(), sender));
        let result = self.expire(&key, event).await;
        *lock(&self.pending) = None;
        result
    }

    async fn expire(&self, key: &str, event: oneshot::Receiver<()>) -> Result<bool> {
        let mut set = redis::cmd("SET");
        set.arg(key).arg("").arg("PX").arg(TIME_TO_LIVE.as_millis() as u64);
        self.link.run(Effect::Repeatable, &set).await?;
        tokio::time::sleep(TOUCH_AFTER).await;
        let mut touch = redis::cmd("TOUCH");
        touch.arg(key);
        self.link.run(Effect::Repeatable, &touch).await?;
        Ok(matches!(tokio::time::timeout(EVENT_TIMEOUT, event).await, Ok(Ok(()))))
    }

    /// Ignores other keys, including other processes' probes.
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
