//! Whether to read ahead, and for which queues.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{QueueName, Timestamp};
use tokio::sync::Notify;

/// How long to read ahead after a job has missed its message.
const AFTER_MISS: Duration = Duration::from_secs(60);

/// For which queues this process reads ahead, and whether it does.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    /// The queues that this process claims from.
    pub(super) queues: Mutex<HashSet<QueueName>>,
    /// When a job last missed its message, in Unix milliseconds.
    missed_at: AtomicI64,
    pub(super) missed: Notify,
    /// No job has a message.
    is_permanent: bool,
}

impl ReadAhead {
    pub(crate) fn new(is_permanent: bool) -> Self {
        Self {
            queues: Mutex::default(),
            missed_at: AtomicI64::new(i64::MIN),
            missed: Notify::new(),
            is_permanent,
        }
    }

    /// This process claims from this queue.
    pub(crate) fn serve(&self, queue: &QueueName) {
        let mut queues = lock(&self.queues);
        if !queues.contains(queue) {
            queues.insert(queue.clone());
        }
    }

    /// A job that should have a message was claimed here without it. That is also so while this reads
    /// ahead, which then goes on.
    pub(crate) fn note_miss(&self, now: Timestamp) {
        self.missed_at.store(now.as_millis(), Ordering::Relaxed);
        self.missed.notify_one();
    }

    pub(super) fn is_active(&self, now: Timestamp) -> bool {
        let missed_at = Timestamp::from_millis(self.missed_at.load(Ordering::Relaxed));
        self.is_permanent || now < missed_at + AFTER_MISS
    }
}
