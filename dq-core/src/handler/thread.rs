//! The thread for a blocking handler.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::sync::lock;

/// A blocking handler's thread, which nobody can stop.
///
/// The runner must not end the run while the thread is busy, or the job could run twice at once. A
/// thread stays busy until its result is received or dropped.
#[derive(Debug, Clone, Default)]
pub(crate) struct HandlerThread {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    Busy,
    /// The thread may not start any more.
    Forbidden,
}

/// Keeps the thread busy until dropped.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Shared>);

impl HandlerThread {
    /// Called on the thread before the handler. Returns `None` if the handler must not start.
    pub(crate) fn start(&self) -> Option<Busy> {
        let mut state = lock(&self.shared.state);
        (*state != State::Forbidden).then(|| {
            *state = State::Busy;
            Busy(Arc::clone(&self.shared))
        })
    }

    /// Returns whether the thread is busy; an idle thread can no longer start.
    ///
    /// A thread may start long after its request, because the runtime limits the thread count.
    pub(crate) fn is_busy_or_forbid(&self) -> bool {
        let mut state = lock(&self.shared.state);
        if *state == State::Idle {
            *state = State::Forbidden;
        }
        *state == State::Busy
    }

    /// Waits until the thread is not busy. Cancellation safe.
    pub(crate) async fn ended(&self) {
        loop {
            // Created before the check, to catch an end after it.
            let ended = self.shared.ended.notified();
            if *lock(&self.shared.state) != State::Busy {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *lock(&self.0.state) = State::Idle;
        self.0.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_busy_thread_is_awaited_and_a_forbidden_one_does_not_start() {
        let thread = HandlerThread::default();
        let busy = thread.start().unwrap();
        assert!(thread.is_busy_or_forbid());
        let mut ended = Box::pin(thread.ended());
        assert!(futures_util::poll!(&mut ended).is_pending());
        drop(busy);
        ended.await;
        assert!(!thread.is_busy_or_forbid());
        assert!(thread.start().is_none());
    }
}
