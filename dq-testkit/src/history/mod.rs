//! A checker for histories: what clients observed of a store, held against the contract.
//!
//! Each call has an [`Interval`] between its invocation and its return, and took effect somewhere
//! within it. Two calls are ordered only if one returned before the other was invoked; the checker
//! reports a violation only if no order of the overlapping calls explains it. A call whose answer
//! was lost (`None`) may or may not have taken effect.

mod check;
mod event;
mod lifetime;

use dq_core::{JobId, Settled, Verdict};

pub use event::{Clause, HistoryEvent, Interval, ObservedCall, OperatorAction, Violation};

/// What all clients of one store observed.
#[derive(Debug, Clone, Default)]
pub struct History {
    events: Vec<HistoryEvent>,
}

impl History {
    /// A history of these events, given in any order.
    #[must_use]
    pub fn new(mut events: Vec<HistoryEvent>) -> Self {
        events.sort_by_key(|event| event.interval.invoked);
        Self { events }
    }

    /// The events in the order of their invocations.
    #[must_use]
    pub fn events(&self) -> &[HistoryEvent] {
        &self.events
    }

    /// The number of settlements as done that were accepted: a measure of how much a check proves.
    #[must_use]
    pub fn done(&self) -> usize {
        let is_done = |event: &&HistoryEvent| match &event.call {
            ObservedCall::Settle { settlement, answer } => {
                settlement.verdict == Verdict::Done && *answer == Some(Settled::Accepted)
            }
            _ => false,
        };
        self.events.iter().filter(is_done).count()
    }

    /// Every violation that can be proven, given which jobs the store holds at the end.
    #[must_use]
    pub fn check(&self, remaining: &[JobId]) -> Vec<Violation> {
        check::check(&self.events, remaining)
    }
}
