//! Compares two backends, call by call.
//!
//! [`check`] makes the same calls on a reference and on the backend under test, and compares every
//! answer, the counts and the listings. Both share a virtual clock. [`check_real_time`] is for a
//! backend that cannot use one. With the feature `proptest`, `steps` generates random sequences,
//! which shrink to the shortest one with a difference.

mod comparison;
#[cfg(feature = "proptest")]
mod random;
mod rounded;
mod step;

use std::sync::Arc;

use dq_core::{Backend, VirtualClock};

#[cfg(feature = "proptest")]
pub use random::steps;
pub use step::{DueTime, Ending, FlowSpec, JobChoice, JobSpec, Step};

use self::comparison::{Clocks, Comparison};
use crate::behaviour::TrialResult;

/// All jobs are compared after this many steps, and in the end.
const STEPS_PER_LISTING: usize = 20;

/// Takes the steps on two backends that share a clock, and compares them.
///
/// Both must be empty and use `clock`. The reference must keep a history if the subject does.
///
/// # Errors
/// The first answer, count or listing that differs, with its step.
pub async fn check(
    reference: Arc<dyn Backend>,
    subject: Arc<dyn Backend>,
    clock: Arc<VirtualClock>,
    steps: &[Step],
) -> TrialResult {
    take_all(Comparison::new(reference, subject, clock, Clocks::Shared), steps).await
}

/// Takes the steps on two backends, where the subject uses real time.
///
/// Both must be empty. The subject uses the system clock, or the clock of a server on the same
/// machine. The reference uses `clock`, which follows.
///
/// Milliseconds in the steps become hours, so that no lease expires and no job becomes due
/// meanwhile. Waits and clock changes are skipped. A call that repeats a job in a wrong queue uses
/// the right one instead, because a store with separate queues does not notice the mistake.
///
/// The subject must answer `stats` with current counts, and a claim must leave no due job to
/// another claimer.
///
/// # Errors
/// The same as for [`check`].
pub async fn check_real_time(
    reference: Arc<dyn Backend>,
    subject: Arc<dyn Backend>,
    clock: Arc<VirtualClock>,
    steps: &[Step],
) -> TrialResult {
    take_all(Comparison::new(reference, subject, clock, Clocks::Own), steps).await
}

async fn take_all(mut comparison: Comparison, steps: &[Step]) -> TrialResult {
    for (number, step) in steps.iter().enumerate() {
        comparison.take(number, step).await?;
        if (number + 1) % STEPS_PER_LISTING == 0 {
            comparison.compare_contents(number + 1).await?;
        }
    }
    comparison.compare_contents(steps.len()).await
}
