//! Escalations: the delays of a handler's steps, and from when they count.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{Headers, Job, Timestamp};

/// From when the delays of an escalation count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum EscalateFrom {
    /// Each delay begins when the step before it has ended.
    #[default]
    StepEnd,
    /// The delays add up from the due time of the first step, however late the steps run. Steps whose
    /// time has passed run one after the other, as the late policy of the queue says.
    FirstDue,
}

/// The escalation of a handler; without steps if it has none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Escalation {
    pub(crate) steps: Arc<[Duration]>,
    pub(crate) from: EscalateFrom,
}

impl Escalation {
    /// When the first step of this job was due, if steps count from then.
    ///
    /// The job carries the time from its second step on.
    pub(crate) fn first_due(&self, job: &Job) -> Option<Timestamp> {
        let EscalateFrom::FirstDue = self.from else { return None };
        let known = job.headers.get(Headers::FIRST_DUE).and_then(|due| due.parse().ok());
        // A job that began before the handler counted from the first step has none.
        Some(known.map_or_else(|| job.first_due - self.offset(job.step()), Timestamp::from_millis))
    }

    /// From the due time of the first step to that of another one.
    pub(crate) fn offset(&self, step: u32) -> Duration {
        let delays = self.steps.iter().skip(1).take(usize::try_from(step).unwrap_or(usize::MAX));
        delays.fold(Duration::ZERO, |sum, delay| sum.saturating_add(*delay))
    }
}
