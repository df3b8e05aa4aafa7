//! Limits for the history of ended jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use super::queue::QueueName;

/// How many ended jobs a store remembers per queue, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryLimit {
    /// Maximum number of jobs; zero remembers none.
    pub max: u32,
    /// Maximum time since the job ended.
    pub age: Duration,
}

impl HistoryLimit {
    /// Remembers no jobs.
    pub const OFF: Self = Self { max: 0, age: Duration::ZERO };

    /// Remembers at most `max` jobs, each for at most `age`.
    pub const fn new(max: u32, age: Duration) -> Self {
        Self { max, age }
    }
}

impl Default for HistoryLimit {
    /// Remembers 1,000 jobs for a day.
    fn default() -> Self {
        Self::new(1_000, Duration::from_secs(86_400))
    }
}

/// The [`HistoryLimit`] by queue, with a default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct HistoryLimits {
    /// The limit for other queues; the store type's default if `None`.
    pub default: Option<HistoryLimit>,
    /// Limits by queue.
    pub queues: BTreeMap<QueueName, HistoryLimit>,
}

impl HistoryLimits {
    /// Sets the same limit for every queue.
    pub const fn all(default: HistoryLimit) -> Self {
        Self { default: Some(default), queues: BTreeMap::new() }
    }

    /// Sets the default limit unless one is set.
    pub fn or_default(mut self, limit: HistoryLimit) -> Self {
        self.default.get_or_insert(limit);
        self
    }

    /// Returns the configured limit for a queue, if any.
    ///
    /// A store shared by several programs must not treat `None` as [`HistoryLimit::OFF`].
    pub fn get(&self, queue: &QueueName) -> Option<HistoryLimit> {
        self.queues.get(queue).copied().or(self.default)
    }

    /// Returns the limit for a queue, or [`HistoryLimit::default`].
    ///
    /// Call [`or_default`](Self::or_default) first for the store's own default.
    pub fn of(&self, queue: &QueueName) -> HistoryLimit {
        self.get(queue).unwrap_or_default()
    }
}
