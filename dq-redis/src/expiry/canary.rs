//! The canary: a key of ours that expires, to find out whether the event comes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dq_core::{Entropy, Result};
use tokio::sync::oneshot;

use crate::connect::{Effect, Link};

/// The canary's life.
const LIFE: Duration = Duration::from_millis(50);

/// When it is touched: a key that is touched when its time is over expires at once.
const TOUCHED: Duration = Duration::from_millis(60);

/// An event that does not come within this time after the touch does not come.
const PATIENCE: Duration = Duration::from_secs(1);

/// Makes canaries, one at a time.
#[derive(Debug)]
pub(super) struct Cage {
    start: String,
    link: Arc<Link>,
    entropy: Arc<Entropy>,
    turn: tokio::sync::Mutex<()>,
    out: Mutex<Option<(String, oneshot::Sender<()>)>>,
}

impl Cage {
    pub(super) fn new(prefix: &str, link: Arc<Link>, entropy: Arc<Entropy>) -> Self {
        let start = format!("{{{prefix}}}:canary:");
        Self { start, link, entropy, turn: tokio::sync::Mutex::default(), out: Mutex::default() }
    }

    /// Lets a canary expire, and says whether it was heard. A second one has to be missed too: a
    /// machine that is very busy may be late with the first.
    pub(super) async fn try_out(&self) -> Result<bool> {
        let _turn = self.turn.lock().await;
        Ok(self.try_one().await? || self.try_one().await?)
    }

    async fn try_one(&self) -> Result<bool> {
        let key = format!("{}{:032x}", self.start, self.entropy.bits());
        let (sender, heard) = oneshot::channel();
        *self.out() = Some((key.clone(), sender));
        let outcome = self.expire(&key, heard).await;
        *self.out() = None;
        outcome
    }

    async fn expire(&self, key: &str, heard: oneshot::Receiver<()>) -> Result<bool> {
        let mut set = redis::cmd("SET");
        set.arg(key).arg("").arg("PX").arg(LIFE.as_millis() as u64);
        self.link.run("canary", Effect::None, &set).await?;
        tokio::time::sleep(TOUCHED).await;
        let mut touch = redis::cmd("TOUCH");
        touch.arg(key);
        self.link.run("canary", Effect::None, &touch).await?;
        Ok(matches!(tokio::time::timeout(PATIENCE, heard).await, Ok(Ok(()))))
    }

    /// A key expired, which may be the canary that is out; other processes have theirs.
    pub(super) fn heard(&self, key: &[u8]) {
        if !key.starts_with(self.start.as_bytes()) {
            return;
        }
        let mut out = self.out();
        if out.as_ref().is_some_and(|(ours, _)| ours.as_bytes() == key)
            && let Some((_, sender)) = out.take()
        {
            sender.send(()).ok();
        }
    }

    fn out(&self) -> std::sync::MutexGuard<'_, Option<(String, oneshot::Sender<()>)>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
