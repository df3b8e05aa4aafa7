//! A comparison of two backends, call by call.
//!
//! [`check`] makes the same calls on a reference and on the backend under test, which share a
//! virtual clock, and compares every answer, the counts and the listings. [`check_real_time`] does so
//! with a backend that cannot use a virtual clock. With the feature `proptest`, `steps` generates
//! random sequences that shrink to the shortest one on which the two differ.

mod comparison;
#[cfg(feature = "proptest")]
mod random;
mod rounded;
mod step;

use std::sync::Arc;

use dq_core::{Backend, VirtualClock};

#[cfg(feature = "proptest")]
pub use random::steps;
pub use step::{DueTime, Ending, JobChoice, JobSpec, Step};

use self::comparison::{Clocks, Comparison};
use crate::behaviour::TrialResult;

/// Takes the steps on both backends, which must be empty and use this clock. The reference keeps a
/// history if the subject does.
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

/// Takes the steps on both backends, which must be empty, where the subject uses the system clock, or
/// that of a server on the same machine; `clock` is that of the reference, and follows.
///
/// Milliseconds in the steps are hours then, so that no lease lapses and no job becomes due meanwhile;
/// waits and changes of the clock are left out. A call that repeats a job in a wrong queue, which a
/// store that keeps its queues apart does not notice, repeats it in its own queue.
///
/// The subject must answer `stats` with current counts, and leave no due job to another claimer.
///
/// # Errors
/// As [`check`].
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
    }
    comparison.compare_contents(steps.len()).await
}
