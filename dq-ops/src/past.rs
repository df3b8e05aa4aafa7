//! The last hour and day, for those who ask.

use std::time::Instant;

use dq_core::{QueueName, Timestamp};

use crate::ops::{Ops, Session};
use crate::watch::{Past, PastWindow};

impl Ops {
    /// When an [`overview`](Session::overview) was last read, by any session; `None` if none was.
    #[must_use]
    pub fn last_overview(&self) -> Option<Instant> {
        self.watch().last_reading()
    }
}

impl Session {
    /// The last hour or day of a queue or of all, from the [overviews](Self::overview) that this
    /// process has read; without a call of the store.
    #[must_use]
    pub fn past(&self, queue: Option<&QueueName>, window: PastWindow, now: Timestamp) -> Past {
        self.ops.watch().past(queue, window, now)
    }
}
