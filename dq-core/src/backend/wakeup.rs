//! Wake-up hints: a job may be due earlier than the listener knows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::sync::Notify;

use crate::model::{QueueName, Timestamp};
use crate::sync::lock;

/// A hint from [`listen`](super::Backend::listen): a job is due at this time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    /// The earliest hinted due time since the last [`Wakeups::next`], by the store's clock.
    pub due: Timestamp,
}

#[derive(Debug)]
struct HintState {
    /// Unix milliseconds; `NO_HINT` if none.
    earliest: AtomicI64,
    notify: Notify,
}

const NO_HINT: i64 = i64::MAX;

/// The receiving end of [`listen`](super::Backend::listen).
///
/// Hints between two calls of `next` are merged.
#[derive(Debug)]
pub struct Wakeups {
    state: Arc<HintState>,
}

impl Wakeups {
    /// Creates a receiver and its sender, for a backend that a server notifies.
    pub fn new() -> (Self, Waker) {
        let state =
            Arc::new(HintState { earliest: AtomicI64::new(NO_HINT), notify: Notify::new() });
        let waker = Waker { state: Arc::downgrade(&state) };
        (Self { state }, waker)
    }

    /// Waits for a hint. Cancellation safe: the hint is kept until returned.
    pub async fn next(&mut self) -> Hint {
        loop {
            let earliest = self.state.earliest.swap(NO_HINT, Ordering::AcqRel);
            if earliest != NO_HINT {
                return Hint { due: Timestamp::from_millis(earliest) };
            }
            self.state.notify.notified().await;
        }
    }
}

/// The sending end of [`listen`](super::Backend::listen).
///
/// It does not keep the receiver alive.
#[derive(Debug, Clone)]
pub struct Waker {
    state: Weak<HintState>,
}

impl Waker {
    /// Returns whether the receiver still exists.
    pub fn has_receiver(&self) -> bool {
        self.state.strong_count() > 0
    }

    /// Sends a hint; returns `false` if the receiver was dropped.
    pub fn wake(&self, due: Timestamp) -> bool {
        let Some(state) = self.state.upgrade() else {
            return false;
        };
        state.earliest.fetch_min(due.as_millis().min(NO_HINT - 1), Ordering::AcqRel);
        // `notify_one` stores a permit if the receiver is not waiting, so no hint is missed.
        state.notify.notify_one();
        true
    }
}

/// Each queue's listeners, for backends that send hints within the process.
#[derive(Debug, Default)]
pub struct Listeners {
    by_queue: Mutex<HashMap<QueueName, Vec<Listener>>>,
}

#[derive(Debug)]
struct Listener {
    worker: Arc<str>,
    waker: Waker,
}

impl Listeners {
    /// Creates a hint receiver for these queues.
    pub fn listen(&self, queues: &[QueueName], worker: &str) -> Wakeups {
        let (wakeups, waker) = Wakeups::new();
        let worker: Arc<str> = worker.into();
        let mut by_queue = self.lock();
        prune(&mut by_queue);
        for queue in queues {
            let listener = Listener { worker: Arc::clone(&worker), waker: waker.clone() };
            by_queue.entry(queue.clone()).or_default().push(listener);
        }
        wakeups
    }

    /// Sends a hint to one queue's listeners.
    pub fn wake(&self, queue: &QueueName, due: Timestamp) {
        if let Some(listeners) = self.lock().get_mut(queue) {
            listeners.retain(|listener| listener.waker.wake(due));
        }
    }

    /// Sends a hint to the queue's listener of this worker, or to all if there is none any more.
    pub fn wake_worker(&self, queue: &QueueName, worker: &str, due: Timestamp) {
        if !self.wake_if_present(queue, worker, due) {
            self.wake(queue, due);
        }
    }

    /// Sends a hint to the queue's listener of this worker. Returns `false` if there is none,
    /// perhaps because it listens in another process.
    pub fn wake_if_present(&self, queue: &QueueName, worker: &str, due: Timestamp) -> bool {
        let mut woken = false;
        if let Some(listeners) = self.lock().get_mut(queue) {
            listeners.retain(|listener| {
                let is_kept = *listener.worker != *worker || listener.waker.wake(due);
                woken |= is_kept && *listener.worker == *worker;
                is_kept
            });
        }
        woken
    }

    /// Sends a hint to all listeners, when you do not know which queue changed.
    pub fn wake_all(&self, due: Timestamp) {
        for listeners in self.lock().values_mut() {
            listeners.retain(|listener| listener.waker.wake(due));
        }
    }

    /// Returns whether no queue has a listener.
    pub fn is_empty(&self) -> bool {
        !self.lock().values().flatten().any(|listener| listener.waker.has_receiver())
    }

    /// Returns the queues that have a listener.
    pub fn queues(&self) -> Vec<QueueName> {
        let mut by_queue = self.lock();
        prune(&mut by_queue);
        by_queue.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Vec<Listener>>> {
        // A panic leaves the lists valid: they are only extended and pruned.
        lock(&self.by_queue)
    }
}

fn prune(by_queue: &mut HashMap<QueueName, Vec<Listener>>) {
    by_queue.retain(|_, listeners| {
        listeners.retain(|listener| listener.waker.has_receiver());
        !listeners.is_empty()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hints_are_merged_into_the_earliest() {
        let listeners = Listeners::default();
        let queue = QueueName::new("q").unwrap();
        let mut wakeups = listeners.listen(std::slice::from_ref(&queue), "w");
        listeners.wake(&queue, Timestamp::from_millis(20));
        listeners.wake(&queue, Timestamp::from_millis(10));
        listeners.wake(&queue, Timestamp::from_millis(30));
        assert_eq!(wakeups.next().await.due.as_millis(), 10);
    }

    #[test]
    fn listening_removes_dropped_listeners_of_all_queues() {
        let listeners = Listeners::default();
        for n in 0..100 {
            let queue = QueueName::new(format!("q{n}")).unwrap();
            drop(listeners.listen(&[queue], "w"));
        }
        let kept = QueueName::new("kept").unwrap();
        let _wakeups = listeners.listen(std::slice::from_ref(&kept), "w");
        let _others = listeners.listen(&[QueueName::new("other").unwrap()], "w");
        let by_queue = listeners.lock();
        assert_eq!(by_queue.values().map(Vec::len).sum::<usize>(), 2);
        assert_eq!((by_queue.len(), by_queue[&kept].len()), (2, 1));
    }
}
