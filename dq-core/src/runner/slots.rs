//! Limits of concurrency: for each queue, and over all queues.
//!
//! A running job occupies a slot of its queue and a slot of the total. A claim first *reserves* as
//! many slots as it may get jobs, and then releases those that it did not use.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::sync::lock;

/// Maximum number of jobs in one call of the store.
pub(super) const BATCH: usize = 100;

/// Slots for running jobs. Several claim loops, one for each store, share them.
#[derive(Debug)]
pub(super) struct Slots {
    state: Mutex<State>,
    /// Notified when a slot is freed; one for each claim loop, which stores a permit while that
    /// loop does not wait.
    freed: Vec<Notify>,
}

#[derive(Debug)]
struct State {
    total: SlotCount,
    /// By the index of the queue.
    queues: Vec<SlotCount>,
    /// The index of the queue with which the next reservation begins. It rotates, for fairness when
    /// the total is scarce.
    first_queue: usize,
    /// By the index of the claim loop: whether slots that it needed were reserved by another loop.
    blocked: Vec<bool>,
}

#[derive(Debug, Clone, Copy)]
struct SlotCount {
    free: usize,
    /// Reserved by claims in progress.
    reserved: usize,
}

impl SlotCount {
    const fn new(free: usize) -> Self {
        Self { free, reserved: 0 }
    }

    fn reserve(&mut self, count: usize) {
        self.free -= count;
        self.reserved += count;
    }

    fn release(&mut self, reserved: usize, used: usize) {
        self.reserved -= reserved;
        self.free += reserved - used;
    }
}

/// Slots that are reserved for a claim in progress.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    /// Indexes of queues, each with the number of its reserved slots.
    pub(super) queues: Vec<(usize, usize)>,
    /// Number of slots over all queues; less than the sum over `queues` if the total is scarce.
    pub(super) limit: usize,
    /// Whether a queue or the total has no slots left beyond these, so that more jobs may be due
    /// than can be claimed.
    pub(super) saturated: bool,
    /// Index of the claim loop.
    claimer: usize,
}

/// The slot of one running job; free again when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    queue: usize,
}

impl Slots {
    pub(super) fn new(total: usize, queues: Vec<usize>, claimers: usize) -> Self {
        let state = State {
            total: SlotCount::new(total),
            queues: queues.into_iter().map(SlotCount::new).collect(),
            first_queue: 0,
            blocked: vec![false; claimers],
        };
        Self {
            state: Mutex::new(state),
            freed: std::iter::repeat_with(Notify::new).take(claimers).collect(),
        }
    }

    /// Reserves free slots for a claim of the claim loop with index `claimer`, at most [`BATCH`].
    ///
    /// With several claim loops each gets only a share, so that a slow store does not delay the
    /// jobs of another.
    pub(super) fn reserve(&self, claimer: usize) -> Reservation {
        let claimers = self.freed.len();
        let mut guard = self.lock();
        let state = &mut *guard;
        let limit = state.total.free.div_ceil(claimers).min(BATCH);
        let mut reservation =
            Reservation { queues: Vec::new(), limit: 0, saturated: limit == 0, claimer };
        state.blocked[claimer] = limit == 0 && state.total.reserved > 0;
        if limit == 0 {
            return reservation;
        }
        let count = state.queues.len();
        for queue in (state.first_queue..count).chain(0..state.first_queue) {
            let slots = &mut state.queues[queue];
            let share = slots.free.div_ceil(claimers).min(limit);
            if share == 0 {
                reservation.saturated = true;
                state.blocked[claimer] |= slots.reserved > 0;
                continue;
            }
            slots.reserve(share);
            reservation.queues.push((queue, share));
        }
        let sum: usize = reservation.queues.iter().map(|(_, slots)| slots).sum();
        reservation.limit = limit.min(sum);
        state.total.reserve(reservation.limit);
        state.first_queue = if count == 0 { 0 } else { (state.first_queue + 1) % count };
        reservation
    }

    /// Frees the slots that a claim did not use; `used` returns the number of used slots by the
    /// index of the queue.
    pub(super) fn release(&self, reservation: &Reservation, used: impl Fn(usize) -> usize) {
        let mut state = self.lock();
        let mut total_used = 0;
        for (queue, slots) in &reservation.queues {
            let used = used(*queue).min(*slots);
            state.queues[*queue].release(*slots, used);
            total_used += used;
        }
        state.total.release(reservation.limit, total_used.min(reservation.limit));
        // Notifies only other loops that were blocked: loops that notified themselves or each other
        // after every claim would never sleep.
        for (claimer, freed) in self.freed.iter().enumerate() {
            if claimer != reservation.claimer && std::mem::take(&mut state.blocked[claimer]) {
                freed.notify_one();
            }
        }
    }

    /// Waits until a slot was freed since the last wait of this claim loop.
    pub(super) async fn freed(&self, claimer: usize) {
        self.freed[claimer].notified().await;
    }

    /// Yields to the other tasks until they free no more slots, or a batch of slots is free, so
    /// that one claim fills the slots of all jobs that end at the same moment.
    pub(super) async fn wait_for_batch(&self) {
        let mut free = self.lock().total.free;
        while free < BATCH {
            tokio::task::yield_now().await;
            let before = std::mem::replace(&mut free, self.lock().total.free);
            if free <= before {
                return;
            }
        }
    }

    /// Frees the slot of a job that has ended, and wakes all claim loops.
    fn free(&self, queue: usize) {
        let mut state = self.lock();
        state.total.free += 1;
        state.queues[queue].free += 1;
        drop(state);
        for claimer in &self.freed {
            claimer.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Slot {
    /// The slot that a claim used for a job of this queue.
    pub(super) fn new(slots: Arc<Slots>, queue: usize) -> Self {
        Self { slots, queue }
    }

    pub(super) const fn queue(&self) -> usize {
        self.queue
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.free(self.queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn several_claim_loops_share_slots_and_wake_each_other() {
        let slots = Slots::new(100, vec![2], 2);
        let slow = slots.reserve(0);
        assert_eq!((slow.queues[0].1, slow.limit), (1, 1));
        let other = slots.reserve(1);
        assert_eq!(other.queues, [(0, 1)]);
        let blocked = slots.reserve(0);
        assert!(blocked.saturated && blocked.queues.is_empty());
        let notified =
            async || tokio::time::timeout(std::time::Duration::ZERO, slots.freed(0)).await.is_ok();
        slots.release(&blocked, |_| 0);
        assert!(!notified().await, "a loop does not notify itself");
        slots.release(&other, |_| 0);
        assert!(notified().await, "a blocked loop is notified");
        slots.release(&slow, |_| 0);
        assert!(!notified().await, "a loop that is not blocked is not notified");
    }

    #[test]
    fn a_scarce_total_rotates_over_queues_and_no_slot_leaks() {
        let slots = Slots::new(3, vec![2, 2, 2], 1);
        let first = slots.reserve(0);
        assert_eq!(first.queues, [(0, 2), (1, 2), (2, 2)]);
        assert_eq!(first.limit, 3);
        assert!(slots.reserve(0).queues.is_empty(), "the total is used up");
        slots.release(&first, |queue| usize::from(queue == 0));
        let second = slots.reserve(0);
        assert_eq!(second.queues[0].0, 1, "another queue comes first");
        assert_eq!(second.limit, 2);
        slots.release(&second, |_| 0);
        slots.free(0);
        let state = slots.lock();
        assert_eq!((state.total.free, state.total.reserved), (3, 0));
        assert!(state.queues.iter().all(|slots| (slots.free, slots.reserved) == (2, 0)));
    }
}
