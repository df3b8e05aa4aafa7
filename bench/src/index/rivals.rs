//! The data structures to compare with.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

use super::candidate::Index;

/// `tokio_util`'s timer wheel, which hands out handles instead of taking keys.
pub(super) struct TokioQueue<'r> {
    queue: DelayQueue<u32>,
    handles: Vec<Key>,
    runtime: &'r Runtime,
    began: Instant,
    now: i64,
}

/// A runtime with a paused clock: only `tokio::time::advance` moves it.
pub(super) fn paused() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime can be made")
}

impl<'r> TokioQueue<'r> {
    /// Call this while the runtime is entered.
    pub(super) fn new(runtime: &'r Runtime) -> Self {
        let (queue, handles) = (DelayQueue::new(), Vec::new());
        Self { queue, handles, runtime, began: Instant::now(), now: 0 }
    }
}

impl Index for TokioQueue<'_> {
    fn insert(&mut self, number: u32, at: i64) {
        let due = self.began + Duration::from_millis(at.unsigned_abs());
        self.handles.push(self.queue.insert_at(number, due));
    }

    fn cancel(&mut self, number: u32) {
        self.queue.remove(&self.handles[number as usize]);
    }

    fn advance(&mut self, now: i64) {
        let by = Duration::from_millis((now - self.now).unsigned_abs());
        self.now = now;
        self.runtime.block_on(tokio::time::advance(by));
    }

    fn pop(&mut self, _now: i64) -> bool {
        // Outside a task, tokio's cooperative budget does not cut polling short.
        let mut context = Context::from_waker(Waker::noop());
        matches!(self.queue.poll_expired(&mut context), Poll::Ready(Some(_)))
    }
}

/// A heap that keeps a cancelled job until it is due.
#[derive(Default)]
pub(super) struct Heap {
    heap: BinaryHeap<Reverse<(i64, u32)>>,
    cancelled: HashSet<u32>,
}

impl Index for Heap {
    fn insert(&mut self, number: u32, at: i64) {
        self.heap.push(Reverse((at, number)));
    }

    fn cancel(&mut self, number: u32) {
        self.cancelled.insert(number);
    }

    fn pop(&mut self, now: i64) -> bool {
        while let Some(Reverse((at, number))) = self.heap.peek().copied() {
            if at > now {
                return false;
            }
            self.heap.pop();
            if !self.cancelled.remove(&number) {
                return true;
            }
        }
        false
    }
}
