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
    /// Wakes the task at a miss, so that it does not wait for its next pass.
    pub(super) missed: Notify,
    /// Whether it reads ahead always, not only after a miss: the ladder is turned off, so no job has a
    /// message.
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

    /// Adds a queue that this process claims from. It stays until the process ends.
    pub(crate) fn serve(&self, queue: &QueueName) {
        let mut queues = lock(&self.queues);
        if !queues.contains(queue) {
            queues.insert(queue.clone());
        }
    }

    /// A job that should have a message was claimed here before the message came. A payload that was
    /// read ahead counts as a miss, too, so that reading ahead goes on as long as messages are missing.
    pub(crate) fn note_miss(&self, now: Timestamp) {
        self.missed_at.store(now.as_millis(), Ordering::Relaxed);
        self.missed.notify_one();
    }

    pub(super) fn is_active(&self, now: Timestamp) -> bool {
        let missed_at = Timestamp::from_millis(self.missed_at.load(Ordering::Relaxed));
        self.is_permanent || now < missed_at + AFTER_MISS
    }
}
