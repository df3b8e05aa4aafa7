//! Optional features of backends.

use crate::model::Flow;

/// The optional features of a backend.
///
/// Calls that need a missing feature fail with `Unsupported`. Third-party backends start from
/// `default()`, which has no feature, because `all()` grows with each version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Capabilities {
    /// Jobs can have keys, with all conflict policies.
    pub keys: bool,
    /// Jobs can be cancelled; a cancelled job never starts.
    pub cancel: bool,
    /// Due times can be changed.
    pub reschedule: bool,
    /// Jobs can be listed in due order and read one by one.
    pub browse: bool,
    /// Dead jobs are kept, and can be replayed and removed.
    pub dead_letters: bool,
    /// Queues can be paused and resumed.
    pub pause: bool,
    /// Each queue has lifetime totals; see [`Totals`](super::Totals).
    pub totals: bool,
    /// Jobs survive a restart of the process.
    pub durable: bool,
    /// Several processes can use the store at the same time.
    pub shared: bool,
    /// Jobs with equal due times fire in order of insertion.
    pub fifo: bool,
    /// A running job can give its key to a new one; see [`OnRunning`](crate::OnRunning). Requires
    /// `keys`.
    pub detach: bool,
    /// A settlement can set a job's next step; see [`Verdict::Again`](super::Verdict::Again).
    pub again: bool,
    /// The store keeps retry errors and lease holders; see [`JobView`](crate::JobView). Requires
    /// `browse`.
    pub reasons: bool,
    /// The store remembers ended jobs and pins their ids. Requires `browse`.
    pub history: bool,
    /// Runners can announce themselves.
    pub registry: bool,
    /// Due jobs can be counted by time; see [`Backend::forecast`](super::Backend::forecast).
    pub forecast: bool,
    /// Queues can have limits for all processes together; see [`Flow`](crate::Flow).
    pub flow: bool,
    /// Jobs can have groups, of which a queue runs a limited number at once. Requires `flow`.
    pub groups: bool,
}

impl Capabilities {
    /// Returns whether a store with these features keeps the limits.
    pub(crate) const fn keeps(&self, flow: &Flow) -> bool {
        (self.flow || !flow.is_limited()) && (self.groups || flow.group_max_running.is_none())
    }

    /// Returns all features, for this project's backends and for tests.
    pub const fn all() -> Self {
        Self {
            keys: true,
            cancel: true,
            reschedule: true,
            browse: true,
            dead_letters: true,
            pause: true,
            totals: true,
            durable: true,
            shared: true,
            fifo: true,
            detach: true,
            again: true,
            reasons: true,
            history: true,
            registry: true,
            forecast: true,
            flow: true,
            groups: true,
        }
    }
}
