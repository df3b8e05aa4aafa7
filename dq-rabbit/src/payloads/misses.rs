//! Counts claims of jobs before their messages came. After such a *miss*, payloads are read ahead
//! for a while.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use dq_core::Timestamp;
use tokio::sync::Notify;

/// How long to read ahead after a miss.
const READ_AHEAD_FOR: Duration = Duration::from_secs(60);

/// Counts the first claims of jobs that should have a message, by whether it had come.
#[derive(Debug)]
pub(crate) struct Misses {
    with_message: AtomicU64,
    without_message: AtomicU64,
    /// In Unix milliseconds.
    last_at: AtomicI64,
    noted: Notify,
    /// There is no ladder, so no job has a message.
    are_permanent: bool,
}

impl Misses {
    pub(crate) fn new(are_permanent: bool) -> Self {
        Self {
            with_message: AtomicU64::new(0),
            without_message: AtomicU64::new(0),
            last_at: AtomicI64::new(i64::MIN),
            noted: Notify::new(),
            are_permanent,
        }
    }

    /// A job whose payload was read ahead counts as missed, so that reading ahead goes on as long
    /// as messages are missing.
    pub(crate) fn count_claim(&self, had_message: bool, now: Timestamp) {
        if had_message {
            self.with_message.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.without_message.fetch_add(1, Ordering::Relaxed);
        self.last_at.store(now.as_millis(), Ordering::Relaxed);
        self.noted.notify_one();
    }

    pub(crate) fn with_message(&self) -> u64 {
        self.with_message.load(Ordering::Relaxed)
    }

    pub(crate) fn without_message(&self) -> u64 {
        self.without_message.load(Ordering::Relaxed)
    }

    pub(crate) async fn noted(&self) {
        self.noted.notified().await;
    }

    pub(crate) fn are_expected(&self, now: Timestamp) -> bool {
        let last_at = Timestamp::from_millis(self.last_at.load(Ordering::Relaxed));
        self.are_permanent || now < last_at + READ_AHEAD_FOR
    }
}
