//! Hints that something may be due earlier than thought.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::sync::Notify;

use crate::model::{QueueName, Timestamp};
use crate::sync::lock;

/// Something is due at this time, by the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    /// The earliest time hinted since the last look.
    pub due: Timestamp,
}

#[derive(Debug)]
struct Cell {
    earliest: AtomicI64,
    notify: Notify,
}

const NOTHING: i64 = i64::MAX;

/// The receiving end of hints. Hints that come while nobody looks are folded into one.
#[derive(Debug)]
pub struct Wakeups {
    cell: Arc<Cell>,
}

impl Wakeups {
    /// A receiving end, and the sending end for a backend whose hints come from afar.
    #[must_use]
    pub fn new() -> (Self, Waker) {
        let cell = Arc::new(Cell { earliest: AtomicI64::new(NOTHING), notify: Notify::new() });
        let waker = Waker { cell: Arc::downgrade(&cell) };
        (Self { cell }, waker)
    }

    /// Waits for a hint. Cancellation safe: a hint is kept until it is returned.
    pub async fn next(&mut self) -> Hint {
        loop {
            let earliest = self.cell.earliest.swap(NOTHING, Ordering::AcqRel);
            if earliest != NOTHING {
                return Hint { due: Timestamp::from_millis(earliest) };
            }
            self.cell.notify.notified().await;
        }
    }
}

/// The sending end of hints. It does not keep the receiver alive.
#[derive(Debug, Clone)]
pub struct Waker {
    cell: Weak<Cell>,
}

impl Waker {
    /// Whether somebody listens still.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        self.cell.strong_count() > 0
    }

    /// Sends a hint; `false` if nobody listens any more.
    pub fn wake(&self, due: Timestamp) -> bool {
        let Some(cell) = self.cell.upgrade() else {
            return false;
        };
        cell.earliest.fetch_min(due.as_millis().min(NOTHING - 1), Ordering::AcqRel);
        // A permit is stored if nobody waits at this moment, so the hint cannot fall between two
        // looks.
        cell.notify.notify_one();
        true
    }
}

/// Who listens to which queue: the usual way for a backend to hand out hints in its own process.
#[derive(Debug, Default)]
pub struct Listeners {
    by_queue: Mutex<HashMap<QueueName, Vec<Waker>>>,
}

impl Listeners {
    /// Opens a listener for these queues.
    #[must_use]
    pub fn listen(&self, queues: &[QueueName]) -> Wakeups {
        let (wakeups, waker) = Wakeups::new();
        let mut by_queue = self.lock();
        for queue in queues {
            by_queue.entry(queue.clone()).or_default().push(waker.clone());
        }
        wakeups
    }

    /// Tells the listeners of one queue that something is due then.
    pub fn wake(&self, queue: &QueueName, due: Timestamp) {
        if let Some(wakers) = self.lock().get_mut(queue) {
            wakers.retain(|waker| waker.wake(due));
        }
    }

    /// Tells every listener, when it is not known what changed.
    pub fn wake_all(&self, due: Timestamp) {
        for wakers in self.lock().values_mut() {
            wakers.retain(|waker| waker.wake(due));
        }
    }

    /// Whether nobody listens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.lock().values().flatten().any(Waker::is_heard)
    }

    /// The queues that somebody listens to.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueName> {
        let mut by_queue = self.lock();
        by_queue.retain(|_, wakers| {
            wakers.retain(Waker::is_heard);
            !wakers.is_empty()
        });
        by_queue.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Vec<Waker>>> {
        // A panic while the lock was held leaves the lists whole: they are only grown or pruned.
        lock(&self.by_queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hints_fold_into_the_earliest_and_are_never_lost() {
        let listeners = Listeners::default();
        let queue = QueueName::new("q").unwrap();
        let mut wakeups = listeners.listen(std::slice::from_ref(&queue));
        listeners.wake(&queue, Timestamp::from_millis(20));
        listeners.wake(&queue, Timestamp::from_millis(10));
        listeners.wake(&queue, Timestamp::from_millis(30));
        assert_eq!(wakeups.next().await.due.as_millis(), 10);
    }

    #[test]
    fn dropped_listeners_are_forgotten() {
        let listeners = Listeners::default();
        let queue = QueueName::new("q").unwrap();
        drop(listeners.listen(std::slice::from_ref(&queue)));
        listeners.wake(&queue, Timestamp::EPOCH);
        assert!(listeners.lock()[&queue].is_empty());
        assert!(listeners.is_empty() && listeners.queues().is_empty());
    }
}
