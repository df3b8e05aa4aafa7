//! A checker for histories: the calls that clients made on a store, compared with the promises of
//! the contract ([`Promise`]). (Not the history of a queue, which is its ended jobs.)
//!
//! Each call has an [`Interval`] between its invocation and its return, and took effect somewhere
//! within it. Two calls are ordered only if one returned before the other was invoked; the checker
//! reports a violation only if no order of the overlapping calls explains it. A call whose answer
//! was lost (`None`) may or may not have taken effect.

mod check;
mod event;
mod lifetime;

use dq_core::{JobId, Settled, Verdict};

pub use event::{HistoryEvent, Interval, ObservedCall, OperatorAction, Promise, Violation};

/// The calls of all clients of one store, as they observed them.
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

    /// The number of accepted settlements as done: a measure of how much a check proves.
    #[must_use]
    pub fn done_count(&self) -> usize {
        let is_done = |event: &&HistoryEvent| match &event.call {
            ObservedCall::Settle { settlement, answer } => {
                settlement.verdict == Verdict::Done && *answer == Some(Settled::Accepted)
            }
            _ => false,
        };
        self.events.iter().filter(is_done).count()
    }

    /// Every violation that the history proves; `remaining` are the jobs in the store at its end.
    #[must_use]
    pub fn check(&self, remaining: &[JobId]) -> Vec<Violation> {
        check::check(&self.events, remaining)
    }
}
