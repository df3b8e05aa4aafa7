//! Checks a [`Trace`], the calls that clients observed, against the contract's promises
//! ([`Promise`]).
//!
//! Each call has an [`Interval`] and took effect somewhere within it. Two calls are ordered only if
//! one returned before the other began. The checker reports a violation only if no order of
//! overlapping calls explains it. A call with a lost answer (`None`) may or may not have taken
//! effect.

mod check;
mod event;
mod lifetime;
mod limits;

use dq_core::{Flow, JobId, QueueName};

pub use event::{
    Interval, ObservedCall, ObservedTarget, ObservedVerdict, OperatorAction, Promise,
    ScheduleAnswer, TraceEvent, Violation,
};
pub use limits::LimitsCheck;

/// The trace of all clients of one store.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    events: Vec<TraceEvent>,
}

impl Trace {
    /// Creates a trace from events in any order.
    #[must_use]
    pub fn new(mut events: Vec<TraceEvent>) -> Self {
        events.sort_by_key(|event| event.interval.invoked);
        Self { events }
    }

    /// Returns the events, ordered by invocation.
    #[must_use]
    pub fn events(&self) -> &[TraceEvent] {
        &self.events
    }

    /// Counts the accepted `Done` settlements: the more, the more a check proves.
    #[must_use]
    pub fn done_count(&self) -> usize {
        let is_done = |event: &&TraceEvent| {
            let done = ObservedVerdict::Done;
            matches!(&event.call, ObservedCall::Settle { verdict, accepted: Some(true), .. } if *verdict == done)
        };
        self.events.iter().filter(is_done).count()
    }

    /// Returns every violation that the trace proves.
    ///
    /// `remaining` holds the jobs in the store at the end.
    #[must_use]
    pub fn check(&self, remaining: &[JobId]) -> Vec<Violation> {
        check::check(&self.events, remaining)
    }

    /// Compares a queue's leases with its limits: where more jobs of the queue, or of a group, were
    /// certainly leased at once, and where more certainly started than the rate allows. They must
    /// have been in force during the whole trace.
    #[must_use]
    pub fn check_limits(&self, queue: &QueueName, flow: Flow) -> LimitsCheck {
        limits::check(&self.events, queue, flow)
    }
}
