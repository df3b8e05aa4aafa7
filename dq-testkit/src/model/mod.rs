//! Two backends, the same calls, the same answers.
//!
//! [`check`] plays a sequence of calls on a reference and on a subject that share a virtual clock,
//! and compares every answer, counts and listings. With the feature `proptest`, `ops` gives
//! random sequences that shrink to the shortest one on which the two differ.

mod op;
mod player;
#[cfg(feature = "proptest")]
mod random;

use std::sync::Arc;

use dq_core::{Backend, VirtualClock};

pub use op::{Handle, Moment, New, Op, Which};
#[cfg(feature = "proptest")]
pub use random::ops;

use crate::behaviour::Passed;

/// Plays the calls on both backends, which are empty and go by this clock.
///
/// # Errors
/// The first difference, with the number of the call.
pub async fn check(
    reference: Arc<dyn Backend>,
    subject: Arc<dyn Backend>,
    clock: Arc<VirtualClock>,
    ops: &[Op],
) -> Passed {
    let mut player = player::Player::new(reference, subject, clock);
    for (number, op) in ops.iter().enumerate() {
        player.play(number, op).await?;
    }
    player.compare_stores(ops.len()).await
}
