//! Counts slots, and divides free ones between claim loops and queues.

use std::time::Duration;

use crate::runner::ahead::{BATCH, RunTime};

/// A queue's position in [`RunnerShared::queues`](crate::runner::shared::RunnerShared::queues).
pub(in crate::runner) type QueueIndex = usize;

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runner) enum Scope {
    All,
    Application,
    Internal,
}

/// One queue's part in a [`Reservation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runner) struct Share {
    pub(in crate::runner) queue: QueueIndex,
    pub(super) slots: usize,
    /// Jobs that the claim may take beyond the slots.
    pub(super) ahead: usize,
}

impl Share {
    pub(in crate::runner) const fn jobs(self) -> usize {
        self.slots + self.ahead
    }

    pub(in crate::runner) const fn slots(self) -> usize {
        self.slots
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(in crate::runner) struct Reservation {
    pub(in crate::runner) scope: Scope,
    pub(in crate::runner) queues: Vec<Share>,
    /// How many jobs the claim may take; may be less than the sum over `queues`.
    pub(in crate::runner) limit: usize,
    pub(super) of_total: usize,
    /// A queue or the total had no free slot, so more jobs may be due. A claim that takes the last
    /// slots does not set it: the loop reserves again.
    pub(in crate::runner) saturated: bool,
    /// The internal queues have no free slot, or there are no internal queues.
    pub(in crate::runner) internal_full: bool,
    pub(super) claim_loop: usize,
}

pub(super) struct FreeShares {
    application: Vec<Share>,
    internal: Vec<Share>,
    of_total: usize,
    saturated: bool,
    /// Another loop has reserved slots that this one needs.
    pub(super) blocked: bool,
}

impl FreeShares {
    pub(super) fn new(
        total: &SlotCount,
        queues: &[QueueSlots],
        first_queue: QueueIndex,
        claim_loops: usize,
    ) -> Self {
        let of_total = total.free.div_ceil(claim_loops);
        let limit = of_total.min(BATCH);
        let mut shares = Self {
            application: Vec::new(),
            internal: Vec::new(),
            of_total,
            saturated: limit == 0,
            blocked: limit == 0 && total.reserved > 0,
        };
        for queue in (first_queue..queues.len()).chain(0..first_queue) {
            let QueueSlots { count, is_internal } = queues[queue];
            if limit == 0 && !is_internal {
                continue;
            }
            let max = if is_internal { BATCH } else { limit };
            let slots = count.free.div_ceil(claim_loops).min(max);
            if slots == 0 {
                shares.saturated = true;
                shares.blocked |= count.reserved > 0;
            } else if is_internal {
                shares.internal.push(Share { queue, slots, ahead: 0 });
            } else {
                let ahead = count.run_time.ahead(slots);
                shares.application.push(Share { queue, slots, ahead });
            }
        }
        shares
    }

    pub(super) fn reservation(
        mut self,
        claim_loop: usize,
        prefers_internal: bool,
        total_run_time: RunTime,
    ) -> Reservation {
        let sum_slots = |shares: &[Share]| shares.iter().map(|share| share.slots).sum::<usize>();
        let (application, internal) = (sum_slots(&self.application), sum_slots(&self.internal));
        // Jobs that can start at once come before jobs ahead.
        let room_ahead = BATCH.saturating_sub(application);
        self.application.iter_mut().for_each(|share| share.ahead = share.ahead.min(room_ahead));
        let ahead = self.application.iter().map(|share| share.ahead).sum::<usize>();

        let is_scarce = self.of_total == 0 || application > self.of_total;
        let (scope, queues, limit, of_total) = if !is_scarce {
            // Internal jobs first, then room for a full batch: neither sort's backlog holds up the
            // other.
            let limit = internal + (application + ahead).min(BATCH);
            let mut queues = self.internal;
            queues.extend(self.application);
            (Scope::All, queues, limit, application.min(limit))
        } else if prefers_internal && internal > 0 {
            (Scope::Internal, self.internal, internal, 0)
        } else {
            let of_total = self.of_total.min(BATCH).min(application);
            // By the total's run time: the next jobs may belong to any queue.
            let ahead = ahead.min(total_run_time.ahead(of_total));
            (Scope::Application, self.application, (of_total + ahead).min(BATCH), of_total)
        };
        let (saturated, internal_full) = (self.saturated, internal == 0);
        Reservation { scope, queues, limit, of_total, saturated, internal_full, claim_loop }
    }
}
