//! Limits of concurrency: for each queue, and over all queues.
//!
//! A running job occupies a slot of its queue and a slot of the total. A claim first *reserves* free
//! slots, and then frees those that its jobs do not take. It may take jobs [`ahead`](super::ahead) of
//! the slots; these wait in a line and take over the slots of the jobs that end.
//!
//! An *internal* queue is one of the framework itself, such as that of schedules. Its jobs run for
//! milliseconds and occupy no slot of the total, so that they need not wait until jobs of the
//! application have ended. If the total is scarce, the limit of one claim cannot be right for both
//! sorts of queues, so each is claimed by itself.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::ahead::{BATCH, RunTime};
use super::events::{Event, Observers};
use crate::clock::Clock;
use crate::sync::lock;

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
    /// Claimed jobs without a slot, in the order of their claims.
    line: VecDeque<Waiting>,
}

/// A claimed job that waits for a slot.
#[derive(Debug)]
struct Waiting {
    queue: usize,
    /// Index of its claim loop.
    claimer: usize,
    slot: oneshot::Sender<Slot>,
}

#[derive(Debug, Clone, Copy)]
struct SlotCount {
    capacity: usize,
    free: usize,
    /// Reserved by claims in progress.
    reserved: usize,
    /// When one was last freed while all were used, by [`Clock::elapsed`].
    full_until: Option<Duration>,
    run_time: RunTime,
}

impl SlotCount {
    const fn new(free: usize) -> Self {
        Self { capacity: free, free, reserved: 0, full_until: None, run_time: RunTime::NEW }
    }

    const fn used(&self) -> usize {
        self.capacity - self.free - self.reserved
    }

    fn reserve(&mut self, count: usize) {
        self.free -= count;
        self.reserved += count;
    }

    fn release(&mut self, reserved: usize) {
        self.reserved -= reserved;
        self.free += reserved;
    }

    /// Frees the slot of a job at `now`, by [`Clock::elapsed`]; `run` is how long it ran, if it did.
    fn free(&mut self, run: Option<Duration>, now: Duration) {
        if self.used() == self.capacity {
            self.full_until = Some(now);
        }
        self.free += 1;
        if let Some(run) = run {
            self.run_time.record(run);
        }
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

/// The part of one queue in a [`Reservation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// The index of the queue.
    pub(super) queue: usize,
    /// Number of reserved slots.
    slots: usize,
    /// Number of jobs beyond the slots that the claim may take.
    ahead: usize,
}

impl Share {
    /// Maximum number of jobs of the queue.
    pub(super) const fn jobs(self) -> usize {
        self.slots + self.ahead
    }
}

/// Slots that are reserved for a claim in progress.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) scope: Scope,
    pub(super) queues: Vec<Share>,
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
    /// When the job took it, by [`Clock::elapsed`].
    since: Duration,
    has_run: bool,
}

/// What a claimed job has got.
#[derive(Debug)]
pub(super) enum Place {
    Slot(Slot),
    /// It waits for a slot. An error means that it has to be given back.
    InLine(oneshot::Receiver<Slot>),
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
            line: VecDeque::new(),
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
    /// use, the application may. Short jobs of the application may be taken ahead of the slots.
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
            let ahead = if is_internal { 0 } else { slots.run_time.ahead(share) };
            let shares = if is_internal { &mut internal } else { &mut application };
            shares.push(Share { queue, slots: share, ahead });
        }
        let sum = |shares: &[Share]| shares.iter().map(|share| share.slots).sum::<usize>();
        let (sum_application, sum_internal) = (sum(&application), sum(&internal));
        // Jobs ahead take no place of one that can start at once.
        let room = BATCH.saturating_sub(sum_application);
        application.iter_mut().for_each(|share| share.ahead = share.ahead.min(room));
        let ahead = application.iter().map(|share| share.ahead).sum::<usize>();
        let internal_full = sum_internal == 0;
        let is_scarce = limit == 0 || sum_application > of_total;
        let (scope, queues, limit, of_total) = if !is_scarce {
            // Internal jobs come first, and then there is room for a batch of the others, so that a
            // backlog of one sort does not hold up the other.
            internal.extend(application);
            let of_application = (sum_application + ahead).min(BATCH);
            let limit = sum_internal + of_application;
            (Scope::All, internal, limit, sum_application.min(limit))
        } else if prefers_internal && sum_internal > 0 {
            (Scope::Internal, internal, sum_internal, 0)
        } else {
            let of_total = limit.min(sum_application);
            // The next jobs may be of any queue.
            let ahead = ahead.min(state.total.run_time.ahead(of_total));
            (Scope::Application, application, (of_total + ahead).min(BATCH), of_total)
        };
        state.blocked[claimer] = blocked;
        for share in &queues {
            state.queues[share.queue].count.reserve(share.slots);
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

    /// Gives reserved slots to claimed jobs, by the indexes of their queues in the order in which they
    /// are to start, and frees the others. A job for which no slot is left waits in line.
    pub(super) fn fill(
        self: &Arc<Self>,
        reservation: &Reservation,
        jobs: impl IntoIterator<Item = usize>,
    ) -> Vec<Place> {
        let now = self.clock.elapsed();
        let mut guard = self.lock();
        let state = &mut *guard;
        for share in &reservation.queues {
            state.queues[share.queue].count.release(share.slots);
        }
        state.total.release(reservation.of_total);
        let place = |queue: usize| {
            if state.take(queue) {
                return Place::Slot(Slot::new(Arc::clone(self), queue, now));
            }
            let (slot, place) = oneshot::channel();
            state.line.push_back(Waiting { queue, claimer: reservation.claimer, slot });
            Place::InLine(place)
        };
        let places = jobs.into_iter().map(place).collect();
        // Slots that this claim did not need may be those that jobs of other loops wait for.
        let granted = std::iter::from_fn(|| state.next_in_line()).collect::<Vec<_>>();
        // Notifies only other loops that were blocked: loops that notified themselves or each other
        // after every claim would never sleep.
        for (claimer, freed) in self.freed.iter().enumerate() {
            if claimer != reservation.claimer && std::mem::take(&mut state.blocked[claimer]) {
                freed.notify_one();
            }
        }
        drop(guard);
        granted.into_iter().for_each(|waiting| self.grant(waiting, now));
        places
    }

    /// Hands a slot to a job in line. If it waits no more, the slot is dropped, and so freed.
    fn grant(self: &Arc<Self>, Waiting { queue, slot, .. }: Waiting, now: Duration) {
        self.observers.notify(&Event::SlotTaken);
        let _ = slot.send(Slot::new(Arc::clone(self), queue, now));
    }

    /// Gives up the places in line of the jobs of one claim loop; returns how many there were.
    pub(super) fn give_up(&self, claimer: usize) -> usize {
        let line = &mut self.lock().line;
        let before = line.len();
        line.retain(|waiting| waiting.claimer != claimer);
        before - line.len()
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

    /// Frees the slot of a job that has ended; `run` is how long it ran, if it did. The first job in
    /// line that can use it takes it over; otherwise all claim loops are woken.
    fn free(self: &Arc<Self>, queue: usize, run: Option<Duration>) {
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
        // A job of another queue takes a slot of the total only, so that of this queue is free.
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
    /// Takes a free slot for a job of this queue; returns whether there was one.
    fn take(&mut self, queue: usize) -> bool {
        let QueueSlots { count, is_internal } = &mut self.queues[queue];
        let is_free = count.free > 0 && (*is_internal || self.total.free > 0);
        if is_free {
            count.free -= 1;
            self.total.free -= usize::from(!*is_internal);
        }
        is_free
    }

    /// Takes a free slot for the first job in line for which there is one.
    fn next_in_line(&mut self) -> Option<Waiting> {
        let next = (0..self.line.len()).find(|index| self.take(self.line[*index].queue))?;
        self.line.remove(next)
    }
}

impl Slot {
    const fn new(slots: Arc<Slots>, queue: usize, since: Duration) -> Self {
        Self { slots, queue, since, has_run: false }
    }

    /// Records that the job runs, and not only occupies the slot; returns the index of its queue.
    pub(super) const fn begin_run(&mut self) -> usize {
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
