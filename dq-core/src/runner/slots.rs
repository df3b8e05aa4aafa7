//! Limits of concurrency: for each queue, and over all queues.
//!
//! A running job occupies a slot of its queue and a slot of the total. A claim first *reserves* as
//! many slots as it may get jobs, and then releases those that it did not use.
//!
//! An *internal* queue is one of the framework itself, such as that of schedules. Its jobs run for
//! milliseconds and occupy no slot of the total, so that they need not wait until jobs of the
//! application have ended. If the total is scarce, the limit of one claim cannot be right for both
//! sorts of queues, so each is claimed by itself.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use super::events::{Event, Observers};
use crate::clock::Clock;
use crate::sync::lock;

/// Maximum number of jobs in one settlement or renewal; base of the limit of a claim, see
/// [`reserve`](Slots::reserve).
pub(super) const BATCH: usize = 100;

/// Slots for running jobs. Several claim loops, one for each store, share them.
#[derive(Debug)]
pub(super) struct Slots {
    state: Mutex<State>,
    /// Notified when a slot is freed; one for each claim loop, which stores a permit while that
    /// loop does not wait.
    freed: Vec<Notify>,
    clock: Arc<dyn Clock>,
    observers: Observers,
}

#[derive(Debug)]
struct State {
    total: SlotCount,
    /// By the index of the queue.
    queues: Vec<QueueSlots>,
    /// The index of the queue with which the next reservation begins. It rotates, for fairness when
    /// the total is scarce.
    first_queue: usize,
    /// By the index of the claim loop: whether slots that it needed were reserved by another loop.
    blocked: Vec<bool>,
}

#[derive(Debug, Clone, Copy)]
struct SlotCount {
    capacity: usize,
    free: usize,
    /// Reserved by claims in progress.
    reserved: usize,
    /// When one was last freed while all were used, by [`Clock::elapsed`].
    full_until: Option<Duration>,
}

impl SlotCount {
    const fn new(free: usize) -> Self {
        Self { capacity: free, free, reserved: 0, full_until: None }
    }

    const fn used(&self) -> usize {
        self.capacity - self.free - self.reserved
    }

    fn reserve(&mut self, count: usize) {
        self.free -= count;
        self.reserved += count;
    }

    fn release(&mut self, reserved: usize, used: usize) {
        self.reserved -= reserved;
        self.free += reserved - used;
    }

    fn free(&mut self, clock: &dyn Clock) {
        if self.used() == self.capacity {
            self.full_until = Some(clock.elapsed());
        }
        self.free += 1;
    }
}

/// The slots of one queue.
#[derive(Debug, Clone, Copy)]
struct QueueSlots {
    count: SlotCount,
    is_internal: bool,
}

/// Which queues a claim is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    Application,
    Internal,
}

/// Slots that are reserved for a claim in progress.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) scope: Scope,
    /// Indexes of queues, each with the number of its reserved slots.
    pub(super) queues: Vec<(usize, usize)>,
    /// Maximum number of jobs over all queues; may be less than the sum over `queues`.
    pub(super) limit: usize,
    /// Number of slots of the total.
    of_total: usize,
    /// Whether a queue or the total had no free slot, so that more jobs may be due than can be
    /// claimed. A claim that takes the last slots does not count: while more jobs are due, the loop
    /// reserves again.
    pub(super) saturated: bool,
    /// Whether the internal queues have no slots left, or there are none.
    pub(super) internal_full: bool,
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
    /// `queues` are the slots of each queue, and whether it is internal.
    pub(super) fn new(
        total: usize,
        queues: impl IntoIterator<Item = (usize, bool)>,
        claimers: usize,
        clock: Arc<dyn Clock>,
        observers: Observers,
    ) -> Self {
        let queue_slots =
            |(slots, is_internal)| QueueSlots { count: SlotCount::new(slots), is_internal };
        let state = State {
            total: SlotCount::new(total),
            queues: queues.into_iter().map(queue_slots).collect(),
            first_queue: 0,
            blocked: vec![false; claimers],
        };
        Self {
            state: Mutex::new(state),
            freed: std::iter::repeat_with(Notify::new).take(claimers).collect(),
            clock,
            observers,
        }
    }

    /// Reserves free slots for a claim of the claim loop with index `claimer`: for at most [`BATCH`]
    /// jobs of the application, and as many of each internal queue. What the internal queues do not
    /// use, the application may.
    ///
    /// If one claim cannot be for all queues, it is for the internal ones if `prefers_internal`, and
    /// otherwise for those of the application.
    ///
    /// With several claim loops each gets only a share, so that a slow store does not delay the
    /// jobs of another.
    pub(super) fn reserve(&self, claimer: usize, prefers_internal: bool) -> Reservation {
        let claimers = self.freed.len();
        let mut guard = self.lock();
        let state = &mut *guard;
        let of_total = state.total.free.div_ceil(claimers);
        let limit = of_total.min(BATCH);
        let mut blocked = limit == 0 && state.total.reserved > 0;
        let mut saturated = limit == 0;
        let count = state.queues.len();
        let (mut application, mut internal) = (Vec::new(), Vec::new());
        for queue in (state.first_queue..count).chain(0..state.first_queue) {
            let QueueSlots { count: slots, is_internal } = state.queues[queue];
            if limit == 0 && !is_internal {
                continue;
            }
            let share = slots.free.div_ceil(claimers).min(if is_internal { BATCH } else { limit });
            if share == 0 {
                saturated = true;
                blocked |= slots.reserved > 0;
                continue;
            }
            let shares = if is_internal { &mut internal } else { &mut application };
            shares.push((queue, share));
        }
        let sum = |queues: &[(usize, usize)]| queues.iter().map(|(_, slots)| slots).sum::<usize>();
        let (sum_application, sum_internal) = (sum(&application), sum(&internal));
        let internal_full = sum_internal == 0;
        let is_scarce = limit == 0 || sum_application > of_total;
        let (scope, queues, limit, of_total) = if !is_scarce {
            // Internal jobs come first, and then there is room for a batch of the others, so that a
            // backlog of one sort does not hold up the other.
            internal.extend(application);
            let limit = sum_internal + sum_application.min(BATCH);
            (Scope::All, internal, limit, sum_application.min(limit))
        } else if prefers_internal && sum_internal > 0 {
            (Scope::Internal, internal, sum_internal, 0)
        } else {
            let limit = limit.min(sum_application);
            (Scope::Application, application, limit, limit)
        };
        state.blocked[claimer] = blocked;
        for (queue, share) in &queues {
            state.queues[*queue].count.reserve(*share);
        }
        state.total.reserve(of_total);
        if scope != Scope::Internal && limit > 0 {
            state.first_queue = if count == 0 { 0 } else { (state.first_queue + 1) % count };
        }
        Reservation { scope, queues, limit, of_total, saturated, internal_full, claimer }
    }

    /// Whether a job of this queue, by its index, that was due at this time, by [`Clock::elapsed`],
    /// has waited for a slot. It is right while the claim that returned the job has reserved slots:
    /// until they are released, neither the queue nor the total gets full.
    pub(super) fn has_waited(&self, queue: usize, due: Duration) -> bool {
        let state = self.lock();
        let QueueSlots { count, is_internal } = state.queues[queue];
        let of_total = state.total.full_until.filter(|_| !is_internal);
        count.full_until.max(of_total).is_some_and(|until| due < until)
    }

    /// Frees the slots that a claim did not use; `used` returns the number of used slots by the
    /// index of the queue.
    pub(super) fn release(&self, reservation: &Reservation, used: impl Fn(usize) -> usize) {
        let mut state = self.lock();
        let mut total_used = 0;
        for (queue, slots) in &reservation.queues {
            let used = used(*queue);
            let queue = &mut state.queues[*queue];
            queue.count.release(*slots, used);
            total_used += if queue.is_internal { 0 } else { used };
        }
        state.total.release(reservation.of_total, total_used);
        // Notifies only other loops that were blocked: loops that notified themselves or each other
        // after every claim would never sleep.
        for (claimer, freed) in self.freed.iter().enumerate() {
            if claimer != reservation.claimer && std::mem::take(&mut state.blocked[claimer]) {
                freed.notify_one();
            }
        }
    }

    /// The number of slots that jobs occupy: of the total, and of each queue by its index.
    pub(super) fn used(&self) -> (usize, Vec<usize>) {
        let state = self.lock();
        (state.total.used(), state.queues.iter().map(|queue| queue.count.used()).collect())
    }

    /// How many more jobs of a queue, by its index, could run now. Slots that a claim in progress has
    /// reserved are not used yet.
    pub(super) fn unused(&self, queue: usize) -> usize {
        let state = self.lock();
        let unused = |count: SlotCount| count.capacity - count.used();
        let of_queue = unused(state.queues[queue].count);
        if state.queues[queue].is_internal { of_queue } else { of_queue.min(unused(state.total)) }
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
        state.queues[queue].count.free(&*self.clock);
        let is_internal = state.queues[queue].is_internal;
        if !is_internal {
            state.total.free(&*self.clock);
        }
        drop(state);
        for claimer in &self.freed {
            claimer.notify_one();
        }
        if !is_internal {
            self.observers.notify(&Event::SlotFreed);
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
    use crate::clock::VirtualClock;

    /// Slots of queues of the application, and of an internal one with the next index.
    fn slots(total: usize, queues: &[usize], internal: Option<usize>, claimers: usize) -> Slots {
        let internal = internal.map(|slots| (slots, true));
        let queues = queues.iter().map(|slots| (*slots, false)).chain(internal);
        let clock = Arc::new(VirtualClock::default());
        Slots::new(total, queues, claimers, clock, Observers::default())
    }

    #[tokio::test]
    async fn several_claim_loops_share_slots_and_wake_each_other() {
        let slots = slots(100, &[2], None, 2);
        let slow = slots.reserve(0, false);
        assert_eq!((slow.queues[0].1, slow.limit), (1, 1));
        let other = slots.reserve(1, false);
        assert_eq!(other.queues, [(0, 1)]);
        let blocked = slots.reserve(0, false);
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
        let slots = slots(3, &[2, 2, 2], None, 1);
        let first = slots.reserve(0, false);
        assert_eq!(first.queues, [(0, 2), (1, 2), (2, 2)]);
        assert_eq!(first.limit, 3);
        assert!(slots.reserve(0, false).queues.is_empty(), "the total is used up");
        slots.release(&first, |queue| usize::from(queue == 0));
        let second = slots.reserve(0, false);
        assert_eq!(second.queues[0].0, 1, "another queue comes first");
        assert_eq!(second.limit, 2);
        assert_eq!(slots.used(), (1, vec![1, 0, 0]), "reserved slots are not used");
        assert_eq!([0, 1].map(|queue| slots.unused(queue)), [1, 2]);
        slots.release(&second, |_| 0);
        slots.free(0);
        let state = slots.lock();
        assert_eq!((state.total.free, state.total.reserved), (3, 0));
        let counts = state.queues.iter().map(|queue| queue.count);
        assert!(counts.clone().all(|count| (count.free, count.reserved) == (2, 0)));
    }

    #[test]
    fn a_job_has_waited_if_it_was_due_while_the_slots_were_full() {
        let clock = Arc::new(VirtualClock::default());
        let shared: Arc<dyn Clock> = clock.clone();
        let queues = [(1, false), (2, false)];
        let slots = Slots::new(2, queues, 1, shared, Observers::default());
        let start = clock.elapsed();
        let first = slots.reserve(0, false);
        assert!(!slots.has_waited(0, start), "none has been used yet");
        slots.release(&first, |queue| usize::from(queue == 0));
        clock.advance(Duration::from_secs(1));
        slots.free(0);
        let second = slots.reserve(0, false);
        let freed = start + Duration::from_secs(1);
        assert!(slots.has_waited(0, start) && !slots.has_waited(0, freed));
        assert!(!slots.has_waited(1, start), "the other queue and the total had free slots");
        slots.release(&second, |_| 1);
        clock.advance(Duration::from_secs(1));
        slots.free(0);
        let _third = slots.reserve(0, false);
        assert!(slots.has_waited(1, freed), "the total was full");
    }

    #[test]
    fn internal_queues_have_slots_outside_the_total() {
        let slots = slots(3, &[2], Some(5), 1);
        let all = slots.reserve(0, false);
        assert_eq!((all.scope, all.limit), (Scope::All, 7));
        assert_eq!(all.queues, [(1, 5), (0, 2)]);
        slots.release(&all, |queue| [2, 1][queue]);
        assert_eq!(slots.used(), (2, vec![2, 1]), "one job is not of the total");

        // A slot of the total is free, but none of the queue.
        let rest = slots.reserve(0, false);
        assert_eq!((rest.scope, &rest.queues[..], rest.limit), (Scope::All, &[(1, 4)][..], 4));
        slots.release(&rest, |_| 4);
        let full = slots.reserve(0, true);
        assert!(full.internal_full && full.saturated && full.queues.is_empty());
        slots.release(&full, |_| 0);
        for queue in [0, 0, 1, 1, 1, 1, 1] {
            slots.free(queue);
        }
        let state = slots.lock();
        assert_eq!((state.total.free, state.total.reserved), (3, 0));
        assert_eq!(state.queues.iter().map(|queue| queue.count.free).collect::<Vec<_>>(), [2, 5]);
    }

    /// Otherwise the due time of a job of the application counts as one of an internal queue, and the
    /// claim loop does not sleep while the slots are full.
    #[test]
    fn without_internal_queues_these_count_as_full() {
        let slots = slots(1, &[1], None, 1);
        let all = slots.reserve(0, false);
        assert_eq!(all.scope, Scope::All);
        assert!(all.internal_full && !all.saturated);
    }

    #[test]
    fn a_backlog_of_one_sort_of_queues_leaves_room_for_the_other() {
        let slots = slots(1_000, &[300, 300], Some(256), 1);
        let all = slots.reserve(0, false);
        assert_eq!(all.queues, [(2, BATCH), (0, BATCH), (1, BATCH)]);
        assert_eq!(all.limit, 2 * BATCH);
        // No internal job is due, so the limit is used up by the others.
        slots.release(&all, |queue| [BATCH, BATCH, 0][queue]);
        assert_eq!(slots.used(), (2 * BATCH, vec![BATCH, BATCH, 0]));
        assert_eq!(slots.lock().total.free, 1_000 - 2 * BATCH);
    }

    #[test]
    fn a_scarce_total_makes_claims_of_their_own_for_internal_queues() {
        let slots = slots(3, &[2, 2], Some(5), 1);
        let application = slots.reserve(0, false);
        assert_eq!((application.scope, application.limit), (Scope::Application, 3));
        slots.release(&application, |queue| [2, 1, 0][queue]);
        assert_eq!(slots.reserve(0, false).limit, 0, "the total is used up");
        let internal = slots.reserve(0, true);
        assert_eq!((internal.scope, internal.limit), (Scope::Internal, 5));
        assert_eq!(internal.queues, [(2, 5)]);
        slots.release(&internal, |_| 5);
        assert_eq!(slots.used(), (3, vec![2, 1, 5]));
    }
}
