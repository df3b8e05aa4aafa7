//! The time to wait before a failed store call is repeated.

use std::time::Duration;

/// A delay that doubles with each failure.
#[derive(Debug)]
pub(super) struct RetryDelay {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl RetryDelay {
    pub(super) const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min }
    }

    /// Returns the delay after another failure.
    pub(super) fn after_failure(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(self.max);
        delay
    }

    /// Returns whether a call failed since the last [`reset`](Self::reset).
    pub(super) fn has_failed(&self) -> bool {
        self.next > self.min
    }

    pub(super) const fn reset(&mut self) {
        self.next = self.min;
    }
}
