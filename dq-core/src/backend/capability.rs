//! Optional features of backends.

/// The optional features of a backend.
///
/// Calls that need a missing feature are rejected with `Unsupported`, and the behaviour suite
/// leaves out the trials that need it . `Capabilities::default()` has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Capabilities {
    /// Jobs may have keys, with all conflict policies.
    pub keys: bool,
    /// Jobs can be cancelled; a cancelled job never starts.
    pub cancel: bool,
    /// The due time of jobs can be changed.
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
}

impl Capabilities {
    /// All features; a starting point for backends and tests.
    #[must_use]
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
        }
    }
}
