//! What a backend offers beyond the core.

/// Flags by which calls are allowed or refused and suite trials are selected.
///
/// `Capabilities::default()` offers nothing; a backend names what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Capabilities {
    /// Jobs may have keys, with every conflict policy.
    pub keys: bool,
    /// Jobs can be cancelled, bindingly.
    pub cancel: bool,
    /// Jobs can be moved in time.
    pub reschedule: bool,
    /// Jobs can be listed in due order and looked at one by one.
    pub browse: bool,
    /// Dead jobs are kept, replayable and removable.
    pub dead_letters: bool,
    /// Queues can be paused and resumed.
    pub pause: bool,
    /// Lifetime totals are kept, so that counts add up: see [`Totals`](super::Totals).
    pub totals: bool,
    /// Jobs survive the end of the process.
    pub durable: bool,
    /// Several processes may use the store at once.
    pub shared: bool,
    /// Equal due times fire in order of insertion.
    pub fifo: bool,
}

impl Capabilities {
    /// Everything; a starting point for backends and tests.
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
