//! Counts slots, and divides free ones between claim loops and queues.

use std::time::Duration;

use crate::model::Priority;
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

    pub(super) const fn unused(&self) -> usize {
        self.capacity - self.used()
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
pub(in crate::runner) struct QueueSlots {
    pub(super) count: SlotCount,
    pub(super) is_internal: bool,
    pub(super) priority: Priority,
    /// How many slots of the total only this queue may use.
    pub(super) reserve: usize,
    /// How many of these are reserved by claims in progress.
    own_claimed: usize,
}

impl QueueSlots {
    pub(in crate::runner) const fn application(
        slots: usize,
        priority: Priority,
        reserve: usize,
    ) -> Self {
        let count = SlotCount::new(slots);
        Self { count, is_internal: false, priority, reserve, own_claimed: 0 }
    }

    pub(in crate::runner) const fn internal(slots: usize) -> Self {
        let count = SlotCount::new(slots);
        let priority = Priority::Normal;
        Self { count, is_internal: true, priority, reserve: 0, own_claimed: 0 }
    }

    /// Returns the queue's part of the total that its jobs do not use.
    pub(super) const fn own_unused(&self) -> usize {
        self.reserve.saturating_sub(self.count.used())
    }

    /// Like [`own_unused`](Self::own_unused), without the slots reserved by claims in progress.
    pub(super) const fn own_free(&self) -> usize {
        self.own_unused().saturating_sub(self.own_claimed)
    }

    pub(super) fn reserve_share(&mut self, share: &Share) {
        self.count.reserve(share.slots);
        self.own_claimed += share.own;
    }

    pub(super) fn release_share(&mut self, share: &Share) {
        self.count.release(share.slots);
        self.own_claimed -= share.own;
    }
}

/// The queues and slots that a claim is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runner) enum Scope {
    All,
    /// The slots that all application queues share.
    Shared,
    /// The slots that one queue alone may use: those of internal queues, and reserves.
    Own,
}

/// One queue's part in a [`Reservation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runner) struct Share {
    pub(in crate::runner) queue: QueueIndex,
    pub(super) slots: usize,
    /// How many of the slots are from the queue's reserve.
    pub(super) own: usize,
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
    /// No queue has a free slot of its own.
    pub(in crate::runner) own_full: bool,
    /// A queue has a free slot in its reserve.
    pub(in crate::runner) reserve_free: bool,
    pub(super) claim_loop: usize,
}

pub(super) struct FreeShares {
    application: Vec<Share>,
    internal: Vec<Share>,
    of_shared: usize,
    saturated: bool,
    /// Another loop has reserved slots that this one needs.
    pub(super) blocked: bool,
}

impl FreeShares {
    /// `shared` slots of the total are free for all queues.
    pub(super) fn new(
        total: &SlotCount,
        shared: usize,
        queues: &[QueueSlots],
        first_queue: QueueIndex,
        claim_loops: usize,
    ) -> Self {
        let of_shared = shared.div_ceil(claim_loops);
        let limit = of_shared.min(BATCH);
        let mut shares = Self {
            application: Vec::new(),
            internal: Vec::new(),
            of_shared,
            saturated: limit == 0,
            blocked: limit == 0 && total.reserved > 0,
        };
        for queue in (first_queue..queues.len()).chain(0..first_queue) {
            let QueueSlots { count, is_internal, .. } = queues[queue];
            let free = count.free.div_ceil(claim_loops);
            let own = queues[queue].own_free().div_ceil(claim_loops).min(free).min(BATCH);
            if limit + own == 0 && !is_internal {
                continue;
            }
            let max = if is_internal { BATCH } else { (limit + own).min(BATCH) };
            let slots = free.min(max);
            if slots == 0 {
                shares.saturated = true;
                shares.blocked |= count.reserved > 0;
            } else if is_internal {
                shares.internal.push(Share { queue, slots, own: 0, ahead: 0 });
            } else {
                let ahead = count.run_time.ahead(slots);
                shares.application.push(Share { queue, slots, own, ahead });
            }
        }
        // Stable: the queues of one level take turns.
        shares.application.sort_by_key(|share| queues[share.queue].priority);
        shares
    }

    /// If the shared slots are scarce, the claim is for the queues' own slots, if `expects_own` and
    /// the last claim was not, or for the shared ones. A scarce claim takes no jobs ahead of the
    /// slots if the queues are `ranked`: these jobs would take the slots of others that come later.
    pub(super) fn reservation(
        mut self,
        claim_loop: usize,
        expects_own: bool,
        last_scope: Scope,
        total_run_time: RunTime,
        ranked: bool,
    ) -> Reservation {
        let sum = |shares: &[Share], of: fn(&Share) -> usize| shares.iter().map(of).sum::<usize>();
        let internal = sum(&self.internal, |share| share.slots);
        let own = sum(&self.application, |share| share.own);
        let from_shared = sum(&self.application, |share| share.slots - share.own);
        let (saturated, own_full, reserve_free) = (self.saturated, internal + own == 0, own > 0);
        // Jobs that can start at once come before jobs ahead.
        let room_ahead = BATCH.saturating_sub(own + from_shared);
        self.application.iter_mut().for_each(|share| share.ahead = share.ahead.min(room_ahead));
        let ahead = sum(&self.application, |share| share.ahead);

        let is_scarce = self.of_shared == 0 || from_shared > self.of_shared;
        let is_own = expects_own && !own_full && (last_scope != Scope::Own || self.of_shared == 0);
        let (scope, queues, limit, of_total) = if !is_scarce {
            // Internal jobs first, then room for a full batch: neither sort's backlog holds up the
            // other.
            let limit = internal + (own + from_shared + ahead).min(BATCH);
            let mut queues = self.internal;
            queues.extend(self.application);
            (Scope::All, queues, limit, own + from_shared.min(limit))
        } else if is_own {
            let own_part = |share: &Share| Share { slots: share.own, ahead: 0, ..*share };
            let has_own = self.application.iter().filter(|share| share.own > 0);
            let mut queues = self.internal;
            queues.extend(has_own.map(own_part));
            (Scope::Own, queues, internal + own.min(BATCH), own)
        } else {
            let of_total = self.of_shared.min(BATCH).min(own + from_shared);
            for share in &mut self.application {
                share.slots = share.slots.min(of_total);
                share.own = 0;
                share.ahead = if ranked { 0 } else { share.ahead };
            }
            self.application.retain(|share| share.slots > 0);
            // By the total's run time: the next jobs may belong to any queue.
            let ahead = if ranked { 0 } else { ahead.min(total_run_time.ahead(of_total)) };
            (Scope::Shared, self.application, (of_total + ahead).min(BATCH), of_total)
        };
        Reservation {
            scope,
            queues,
            limit,
            of_total,
            saturated,
            own_full,
            reserve_free,
            claim_loop,
        }
    }
}
