//! How many ended jobs a store remembers, and for how long.

use std::collections::BTreeMap;
use std::time::Duration;

use super::queue::QueueName;

/// How many ended jobs of a queue a store remembers, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryLimit {
    /// Maximum number of jobs; zero remembers none.
    pub max: u32,
    /// Maximum time since the job ended.
    pub age: Duration,
}

impl HistoryLimit {
    /// Remembers no job.
    pub const OFF: Self = Self { max: 0, age: Duration::ZERO };

    /// Remembers at most `max` jobs, none of them longer than `age`.
    #[must_use]
    pub const fn new(max: u32, age: Duration) -> Self {
        Self { max, age }
    }
}

impl Default for HistoryLimit {
    /// 1,000 jobs, for a day.
    fn default() -> Self {
        Self::new(1_000, Duration::from_secs(86_400))
    }
}

/// The [`HistoryLimit`] of each queue, and the one of all others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct HistoryLimits {
    /// The limit of queues without one of their own; that of the store's kind if `None`.
    pub default: Option<HistoryLimit>,
    /// Limits by queue.
    pub queues: BTreeMap<QueueName, HistoryLimit>,
}

impl HistoryLimits {
    /// The same limit for every queue.
    #[must_use]
    pub const fn all(default: HistoryLimit) -> Self {
        Self { default: Some(default), queues: BTreeMap::new() }
    }

    /// These limits, with `limit` as the default if none is set: a store for which the history is
    /// expensive passes [`HistoryLimit::OFF`].
    #[must_use]
    pub fn or_default(mut self, limit: HistoryLimit) -> Self {
        self.default.get_or_insert(limit);
        self
    }

    /// The limit that is set for a queue or for all; `None` if nobody has set one. A store that several
    /// programs open at once must not take that for [`HistoryLimit::OFF`], and delete what the others
    /// write.
    #[must_use]
    pub fn get(&self, queue: &QueueName) -> Option<HistoryLimit> {
        self.queues.get(queue).copied().or(self.default)
    }

    /// The limit of a queue; that of [`HistoryLimit::default`] if none is set, so call
    /// [`or_default`](Self::or_default) before.
    #[must_use]
    pub fn of(&self, queue: &QueueName) -> HistoryLimit {
        self.get(queue).unwrap_or_default()
    }
}
