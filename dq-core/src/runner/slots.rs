//! Concurrency limits: per queue and in total.
//!
//! A running job occupies a slot in its queue and one in the total. A claim first *reserves* free
//! slots, then frees the ones its jobs do not take. It may also take jobs [`ahead`](super::ahead)
//! of the slots; these wait in a line and take over the slots of jobs that end.
//!
//! An *internal* queue belongs to the framework, such as the queue for schedules. Its jobs run for
//! milliseconds and occupy no slot in the total, so they do not wait for application jobs. When the
//! total is scarce, each sort of queue gets its own claim.
//!
//! Each store has one claim loop, and each loop a part of the free slots.

mod reservation;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use self::reservation::{FreeShares, QueueSlots, SlotCount};
use super::ahead::BATCH;
use super::events::{Event, Observers};
use crate::clock::Clock;
use crate::sync::lock;

pub(super) use self::reservation::{QueueIndex, Reservation, Scope, Share};

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
    /// Where the next reservation starts; rotates so that queues share a scarce total.
    first_queue: QueueIndex,
    /// For each claim loop, whether another loop had reserved slots that it needed.
    blocked: Vec<bool>,
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
        queues: impl IntoIterator<Item = (usize, bool)>,
        claim_loops: usize,
        clock: Arc<dyn Clock>,
        observers: Observers,
    ) -> Self {
        let queue_slots =
            |(slots, is_internal)| QueueSlots { count: SlotCount::new(slots), is_internal };
        let state = State {
            total: SlotCount::new(total),
            queues: queues.into_iter().map(queue_slots).collect(),
            first_queue: 0,
            blocked: vec![false; claim_loops],
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
    /// If the total is scarce, the claim covers only internal queues, if `prefers_internal`, or
    /// only the application's.
    ///
    /// With several claim loops, each gets a share: a slow store does not delay another store's
    /// jobs.
    pub(super) fn reserve(&self, claim_loop: usize, prefers_internal: bool) -> Reservation {
        let mut state = self.lock();
        let shares =
            FreeShares::new(&state.total, &state.queues, state.first_queue, self.freed.len());
        state.blocked[claim_loop] = shares.blocked;
        let total_run_time = state.total.run_time;
        let reservation = shares.reservation(claim_loop, prefers_internal, total_run_time);
        for share in &reservation.queues {
            state.queues[share.queue].count.reserve(share.slots);
        }
        state.total.reserve(reservation.of_total);
        if reservation.scope != Scope::Internal && reservation.limit > 0 {
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
        let QueueSlots { count, is_internal } = state.queues[queue];
        let of_total = state.total.full_until.filter(|_| !is_internal);
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
            state.queues[share.queue].count.release(share.slots);
        }
        state.total.release(reservation.of_total);
        let place = |queue: QueueIndex| {
            if state.take(queue) {
                return Place::Slot(Slot::new(Arc::clone(self), queue, now));
            }
            let (slot, place) = oneshot::channel();
            state.line.push_back(Waiting { queue, claim_loop: reservation.claim_loop, slot });
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
        let unused = |count: SlotCount| count.capacity - count.used();
        let of_queue = unused(state.queues[queue].count);
        if state.queues[queue].is_internal { of_queue } else { of_queue.min(unused(state.total)) }
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
        state.queues[queue].count.free(run, now);
        let is_internal = state.queues[queue].is_internal;
        if !is_internal {
            state.total.free(run, now);
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
        let QueueSlots { count, is_internal } = &mut self.queues[queue];
        let is_free = count.free > 0 && (*is_internal || self.total.free > 0);
        if is_free {
            count.free -= 1;
            self.total.free -= usize::from(!*is_internal);
        }
        is_free
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
