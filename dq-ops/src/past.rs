//! Access to the observed last hour and day.

use std::time::Instant;

use dq_core::{QueueName, Timestamp};

use crate::ops::{Ops, Session};
use crate::watch::{Past, PastWindow};

impl Ops {
    /// Returns when any session last read an [`overview`](Session::overview).
    #[must_use]
    pub fn last_overview(&self) -> Option<Instant> {
        self.watch.last_reading()
    }
}

impl Session {
    /// Returns the last hour or day of a queue or of all, without calling the store.
    ///
    /// It covers the [overviews](Self::overview) that this process has read.
    #[must_use]
    pub fn past(&self, queue: Option<&QueueName>, window: PastWindow, now: Timestamp) -> Past {
        self.ops.watch.past(queue, window, now)
    }
}
