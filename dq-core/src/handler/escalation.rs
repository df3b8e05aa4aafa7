//! Escalations: the delays between a handler's steps, and their starting point.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{Headers, Job, Timestamp};

/// The starting point for an escalation's delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum EscalateFrom {
    /// Each delay begins at the end of the step before.
    #[default]
    StepEnd,
    /// Delays add up from the first step's due time, however late the steps run. Overdue steps run
    /// one after the other, by the queue's late policy.
    FirstDue,
}

/// A handler's steps; none without an escalation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Escalation {
    pub(crate) steps: Arc<[Duration]>,
    pub(crate) from: EscalateFrom,
}

impl Escalation {
    /// Returns the first step's due time, if steps count from then. The job carries this time from
    /// its second step on.
    pub(crate) fn first_due(&self, job: &Job) -> Option<Timestamp> {
        let EscalateFrom::FirstDue = self.from else { return None };
        let known = job.headers.get(Headers::FIRST_DUE).and_then(|due| due.parse().ok());
        // A job from before this setting lacks the header.
        Some(known.map_or_else(|| job.first_due - self.offset(job.step()), Timestamp::from_millis))
    }

    pub(crate) fn offset(&self, step: u32) -> Duration {
        let delays = self.steps.iter().skip(1).take(usize::try_from(step).unwrap_or(usize::MAX));
        delays.fold(Duration::ZERO, |sum, delay| sum.saturating_add(*delay))
    }
}
