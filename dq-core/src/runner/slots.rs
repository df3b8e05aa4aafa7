//! Concurrency limits: per queue and in total.
//!
//! A running job occupies a slot in its queue and one in the total. A claim first *reserves* free
//! slots, then frees the ones its jobs do not take. It may also take jobs [`ahead`](super::ahead)
//! of the slots; these wait in a line and take over the slots of jobs that end.
//!
//! A part of the total may be a queue's *reserve*, which no other queue uses; the rest is *shared*,
//! by priority.
//!
//! An *internal* queue belongs to the framework, such as the queue for schedules. Its jobs run for
//! milliseconds and occupy no slot in the total, so they do not wait for application jobs.
//!
//! When the shared slots are scarce, one limit cannot fit them and the slots that a queue has for
//! itself, so each sort gets its own claim.
//!
//! Each store has one claim loop, and each loop a part of the free slots.

mod reservation;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use self::reservation::{FreeShares, SlotCount};
use super::ahead::BATCH;
use super::events::{Event, Observers};
use crate::clock::Clock;
use crate::sync::lock;

pub(super) use self::reservation::{QueueIndex, QueueSlots, Reservation, Scope, Share};

#[derive(Debug)]
pub(super) struct Slots {
    state: Mutex<State>,
    /// One per claim loop. It stores a permit while the loop does not wait.
    freed: Vec<Notify>,
    clock: Arc<dyn Clock>,
    observers: Observers,
}

#[derive(Debug)]
struct State {
    total: SlotCount,
    /// Each queue's slots, by [`QueueIndex`].
    queues: Vec<QueueSlots>,
    /// The queues with a reserve.
    reserving: Vec<QueueIndex>,
    /// Queues differ in priority, or one has a reserve.
    ranked: bool,
    /// Where the next reservation starts; rotates so that queues share a scarce total.
    first_queue: QueueIndex,
    /// For each claim loop, whether another loop had reserved slots that it needed.
    blocked: Vec<bool>,
    /// For each claim loop, whether a reserve has got a free slot since the loop's last claim for
    /// reserves.
    reserve_freed: Vec<bool>,
    /// By priority, then in order of arrival.
    line: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    queue: QueueIndex,
    claim_loop: usize,
    slot: oneshot::Sender<Slot>,
}

/// A job's slot; freed on drop.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    queue: QueueIndex,
    /// When the job got the slot, by [`Clock::elapsed`].
    since: Duration,
    has_run: bool,
}

/// Where a claimed job waits for its start.
#[derive(Debug)]
pub(super) enum Place {
    Slot(Slot),
    /// The job waits for a slot. On a receive error, give the job back.
    InLine(oneshot::Receiver<Slot>),
}

impl Slots {
    pub(super) fn new(
        total: usize,
        queues: Vec<QueueSlots>,
        claim_loops: usize,
        clock: Arc<dyn Clock>,
        observers: Observers,
    ) -> Self {
        let reserving: Vec<_> =
            (0..queues.len()).filter(|queue| queues[*queue].reserve > 0).collect();
        let application = queues.iter().filter(|queue| !queue.is_internal);
        let levels = application.map(|queue| queue.priority);
        let has_levels = levels.clone().min() != levels.max();
        let state = State {
            total: SlotCount::new(total),
            ranked: has_levels || !reserving.is_empty(),
            reserving,
            queues,
            first_queue: 0,
            blocked: vec![false; claim_loops],
            reserve_freed: vec![false; claim_loops],
            line: VecDeque::new(),
        };
        Self {
            state: Mutex::new(state),
            freed: std::iter::repeat_with(Notify::new).take(claim_loops).collect(),
            clock,
            observers,
        }
    }

    /// Reserves free slots for a claim: at most [`BATCH`] application jobs, and as many for each
    /// internal queue. The application may use the internal queues' unused limit, and take short
    /// jobs ahead of the slots.
    ///
    /// If the shared slots are scarce, the claim covers only them, or only the queues' own slots.
    /// The own ones get a claim if the caller `expects_own` jobs, or a slot of a reserve was freed;
    /// the two sorts take turns.
    ///
    /// With several claim loops, each gets a share: a slow store does not delay another store's
    /// jobs.
    pub(super) fn reserve(
        &self,
        claim_loop: usize,
        expects_own: bool,
        last_scope: Scope,
    ) -> Reservation {
        let mut state = self.lock();
        let shared = state.shared_free();
        let claim_loops = self.freed.len();
        let shares =
            FreeShares::new(&state.total, shared, &state.queues, state.first_queue, claim_loops);
        state.blocked[claim_loop] = shares.blocked;
        let expects_own = expects_own || state.reserve_freed[claim_loop];
        let (run_time, ranked) = (state.total.run_time, state.ranked);
        let reservation = shares.reservation(claim_loop, expects_own, last_scope, run_time, ranked);
        for share in &reservation.queues {
            state.queues[share.queue].reserve_share(share);
        }
        state.total.reserve(reservation.of_total);
        if reservation.scope != Scope::Shared {
            state.reserve_freed[claim_loop] = false;
        }
        if reservation.scope != Scope::Own && reservation.limit > 0 {
            state.first_queue = (state.first_queue + 1) % state.queues.len();
        }
        reservation
    }

    /// Returns whether a job has waited for a slot; `due` is by [`Clock::elapsed`].
    ///
    /// Only valid while its claim holds reserved slots: neither the queue nor the total can then
    /// fill up.
    pub(super) fn has_waited(&self, queue: QueueIndex, due: Duration) -> bool {
        let state = self.lock();
        let QueueSlots { count, is_internal, reserve, .. } = state.queues[queue];
        let of_total = state.total.full_until.filter(|_| !is_internal && reserve == 0);
        count.full_until.max(of_total).is_some_and(|until| due < until)
    }

    /// Gives reserved slots to claimed jobs, each passed as its queue in start order, and frees the
    /// rest. Jobs without a slot wait in line.
    pub(super) fn fill(
        self: &Arc<Self>,
        reservation: &Reservation,
        jobs: impl IntoIterator<Item = QueueIndex>,
    ) -> Vec<Place> {
        let now = self.clock.elapsed();
        let mut guard = self.lock();
        let state = &mut *guard;
        for share in &reservation.queues {
            state.queues[share.queue].release_share(share);
        }
        state.total.release(reservation.of_total);
        let place = |queue: QueueIndex| {
            if state.take(queue) {
                return Place::Slot(Slot::new(Arc::clone(self), queue, now));
            }
            let (slot, place) = oneshot::channel();
            state.join_line(Waiting { queue, claim_loop: reservation.claim_loop, slot });
            Place::InLine(place)
        };
        let places = jobs.into_iter().map(place).collect();
        // Other loops' jobs in line may wait for the slots that this claim did not need.
        let granted = std::iter::from_fn(|| state.next_in_line()).collect::<Vec<_>>();
        // Only other loops that were blocked are notified: loops that notify themselves or each
        // other after every claim never sleep.
        for (claim_loop, freed) in self.freed.iter().enumerate() {
            let is_other = claim_loop != reservation.claim_loop;
            if is_other && std::mem::take(&mut state.blocked[claim_loop]) {
                state.reserve_freed[claim_loop] |= !state.reserving.is_empty();
                freed.notify_one();
            }
        }
        drop(guard);
        granted.into_iter().for_each(|waiting| self.grant(waiting, now));
        places
    }

    /// Gives a slot to a job in line. If the job no longer waits, the slot is dropped and so freed.
    fn grant(self: &Arc<Self>, Waiting { queue, slot, .. }: Waiting, now: Duration) {
        self.observers.notify(&Event::SlotTaken);
        let _ = slot.send(Slot::new(Arc::clone(self), queue, now));
    }

    /// Removes one claim loop's jobs from the line. Returns their number.
    pub(super) fn give_up(&self, claim_loop: usize) -> usize {
        let line = &mut self.lock().line;
        let before = line.len();
        line.retain(|waiting| waiting.claim_loop != claim_loop);
        before - line.len()
    }

    /// Returns how many slots jobs occupy, in total and by [`QueueIndex`].
    pub(super) fn used(&self) -> (usize, Vec<usize>) {
        let state = self.lock();
        (state.total.used(), state.queues.iter().map(|queue| queue.count.used()).collect())
    }

    /// Returns how many more jobs of a queue could run. Slots reserved by claims in progress count
    /// as unused.
    pub(super) fn unused(&self, queue: QueueIndex) -> usize {
        let state = self.lock();
        let slots = &state.queues[queue];
        let of_queue = slots.count.unused();
        if slots.is_internal {
            return of_queue;
        }
        of_queue.min(slots.own_unused() + state.shared_unused())
    }

    pub(super) async fn freed(&self, claim_loop: usize) {
        self.freed[claim_loop].notified().await;
    }

    /// Yields until other tasks free no more slots, or a batch is free: one claim then fills the
    /// slots of jobs that ended together.
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

    /// Frees a job's slot; `run` is the job's run time, if it ran. The first job in line that can
    /// use the slot takes it over; otherwise all claim loops wake.
    fn free(self: &Arc<Self>, queue: QueueIndex, run: Option<Duration>) {
        let now = self.clock.elapsed();
        let mut state = self.lock();
        let is_internal = state.queues[queue].is_internal;
        if !is_internal {
            state.note_full(now);
            state.total.free(run, now);
        }
        state.queues[queue].count.free(run, now);
        // With further free ones, the loops know when the queue's next job is due.
        if state.queues[queue].own_free() == 1 {
            state.reserve_freed.fill(true);
        }
        let next = state.next_in_line();
        drop(state);
        if !is_internal {
            self.observers.notify(&Event::SlotFreed);
        }
        // A job of another queue took only the total's slot; this queue's slot is free.
        if next.as_ref().is_none_or(|waiting| waiting.queue != queue) {
            self.freed.iter().for_each(Notify::notify_one);
        }
        if let Some(waiting) = next {
            self.grant(waiting, now);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn take(&mut self, queue: QueueIndex) -> bool {
        let slots = &self.queues[queue];
        let is_internal = slots.is_internal;
        let is_free =
            slots.count.free > 0 && (is_internal || slots.own_free() > 0 || self.shared_free() > 0);
        if is_free {
            self.queues[queue].count.free -= 1;
            self.total.free -= usize::from(!is_internal);
        }
        is_free
    }

    /// Returns how many slots of the total are free and not in a reserve.
    fn shared_free(&self) -> usize {
        self.total.free - self.of_reserves(QueueSlots::own_free)
    }

    /// Like [`shared_free`](Self::shared_free), with the slots reserved by claims in progress.
    fn shared_unused(&self) -> usize {
        self.total.unused() - self.of_reserves(QueueSlots::own_unused)
    }

    fn of_reserves(&self, slots: fn(&QueueSlots) -> usize) -> usize {
        self.reserving.iter().map(|queue| slots(&self.queues[*queue])).sum()
    }

    /// Call it before a slot is freed. While the shared slots are in use, the total is full for
    /// queues without a reserve, and a queue with a reserve is full once it has used that up.
    fn note_full(&mut self, now: Duration) {
        if self.reserving.is_empty() || self.shared_unused() > 0 {
            return;
        }
        self.total.full_until = Some(now);
        for queue in &self.reserving {
            let slots = &mut self.queues[*queue];
            if slots.own_unused() == 0 {
                slots.count.full_until = Some(now);
            }
        }
    }

    fn join_line(&mut self, waiting: Waiting) {
        let priority = |waiting: &Waiting| self.queues[waiting.queue].priority;
        let position = self.line.partition_point(|other| priority(other) <= priority(&waiting));
        self.line.insert(position, waiting);
    }

    fn next_in_line(&mut self) -> Option<Waiting> {
        let next = (0..self.line.len()).find(|index| self.take(self.line[*index].queue))?;
        self.line.remove(next)
    }
}

impl Slot {
    const fn new(slots: Arc<Slots>, queue: QueueIndex, since: Duration) -> Self {
        Self { slots, queue, since, has_run: false }
    }

    pub(super) const fn begin_run(&mut self) -> QueueIndex {
        self.has_run = true;
        self.queue
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let run = self.has_run.then(|| self.slots.clock.elapsed().saturating_sub(self.since));
        self.slots.free(self.queue, run);
    }
}

#[cfg(test)]
mod tests;
