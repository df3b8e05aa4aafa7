//! Misses: claims of jobs before their messages came. After one, payloads are read ahead for a while.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use dq_core::Timestamp;
use tokio::sync::Notify;

/// How long to read ahead after a miss.
const READ_AHEAD_FOR: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Misses {
    /// When the last job was missed, in Unix milliseconds.
    last_at: AtomicI64,
    /// Wakes the reader, so that it does not wait for its next pass.
    noted: Notify,
    /// There is no ladder, so no job has a message.
    are_permanent: bool,
}

impl Misses {
    pub(crate) fn new(are_permanent: bool) -> Self {
        Self { last_at: AtomicI64::new(i64::MIN), noted: Notify::new(), are_permanent }
    }

    /// A job was claimed before its message came. A payload that was read ahead counts too, so that
    /// reading ahead goes on as long as messages are missing.
    pub(crate) fn note(&self, now: Timestamp) {
        self.last_at.store(now.as_millis(), Ordering::Relaxed);
        self.noted.notify_one();
    }

    /// Waits for the next miss.
    pub(crate) async fn noted(&self) {
        self.noted.notified().await;
    }

    pub(crate) fn are_expected(&self, now: Timestamp) -> bool {
        let last_at = Timestamp::from_millis(self.last_at.load(Ordering::Relaxed));
        self.are_permanent || now < last_at + READ_AHEAD_FOR
    }
}
