//! Measures the size of a machine's snapshot.

use super::placement::{JobNotes, JobPlacement};
use crate::backend::{Announced, Receipt};
use crate::model::{Job, JobView, Timestamp};

/// Size functions for a machine's contents, in bytes of the owner's snapshot.
///
/// They keep [`Machine::stored_bytes`](super::Machine::stored_bytes) up to date.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Size of a job with its sequence number, without [`Stored::bytes`](super::Stored::bytes).
    pub job: fn(&Job, u64, &JobPlacement, Option<&JobNotes>) -> u64,
    /// Size of an ended job with its end's sequence number.
    pub ended: fn(u64, &JobView) -> u64,
    /// Size of a pinned id.
    pub pin: fn(&Receipt, Timestamp) -> u64,
    /// Size of an announced runner.
    pub runner: fn(&Announced) -> u64,
}

/// Sums sizes. The sum is 0 while no [`Sizes`] are set.
#[derive(Debug, Default)]
pub(super) struct Meter {
    pub(super) sizes: Option<Sizes>,
    pub(super) bytes: u64,
}

impl Meter {
    pub(super) fn new(sizes: Sizes) -> Self {
        Self { sizes: Some(sizes), bytes: 0 }
    }

    pub(super) fn add(&mut self, size: impl FnOnce(&Sizes) -> u64) {
        self.bytes += self.sizes.as_ref().map_or(0, size);
    }

    pub(super) fn subtract(&mut self, size: impl FnOnce(&Sizes) -> u64) {
        self.bytes -= self.sizes.as_ref().map_or(0, size);
    }
}
