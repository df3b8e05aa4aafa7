//! How many slots a queue or the total has, and how many are in use.

use std::time::Duration;

use crate::runner::ahead::RunTime;

/// A queue's position in [`RunnerShared::queues`](crate::runner::shared::RunnerShared::queues).
pub(in crate::runner) type QueueIndex = usize;

/// The slots of a queue, or of the total.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotCount {
    pub(super) capacity: usize,
    pub(super) free: usize,
    pub(super) reserved: usize,
    /// When a slot was last freed while all were in use, by [`Clock::elapsed`].
    pub(super) full_until: Option<Duration>,
    pub(super) run_time: RunTime,
}

impl SlotCount {
    pub(super) const fn new(free: usize) -> Self {
        Self { capacity: free, free, reserved: 0, full_until: None, run_time: RunTime::NEW }
    }

    pub(super) const fn used(&self) -> usize {
        self.capacity - self.free - self.reserved
    }

    pub(super) fn reserve(&mut self, count: usize) {
        self.free -= count;
        self.reserved += count;
    }

    pub(super) fn release(&mut self, reserved: usize) {
        self.reserved -= reserved;
        self.free += reserved;
    }

    /// Frees a job's slot; `run` is the job's run time, if it ran. `now` is by [`Clock::elapsed`].
    pub(super) fn free(&mut self, run: Option<Duration>, now: Duration) {
        if self.used() == self.capacity {
            self.full_until = Some(now);
        }
        self.free += 1;
        if let Some(run) = run {
            self.run_time.record(run);
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct QueueSlots {
    pub(super) count: SlotCount,
    pub(super) is_internal: bool,
}
