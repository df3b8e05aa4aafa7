//! A comparison of two backends, call by call.
//!
//! [`check`] makes the same calls on a reference and on the backend under test, which share a
//! virtual clock, and compares every answer, the counts and the listings. With the feature
//! `proptest`, `steps` generates random sequences that shrink to the shortest one on which the two
//! differ.

mod comparison;
#[cfg(feature = "proptest")]
mod random;
mod step;

use std::sync::Arc;

use dq_core::{Backend, VirtualClock};

#[cfg(feature = "proptest")]
pub use random::steps;
pub use step::{DueTime, Ending, JobChoice, JobSpec, Step};

use crate::behaviour::TrialResult;

/// Takes the steps on both backends, which must be empty and use this clock.
///
/// # Errors
/// The first answer, count or listing that differs, with its step.
pub async fn check(
    reference: Arc<dyn Backend>,
    subject: Arc<dyn Backend>,
    clock: Arc<VirtualClock>,
    steps: &[Step],
) -> TrialResult {
    let mut comparison = comparison::Comparison::new(reference, subject, clock);
    for (number, step) in steps.iter().enumerate() {
        comparison.take(number, step).await?;
    }
    comparison.compare_contents(steps.len()).await
}
