//! Concurrency limits: per queue and in total.
//!
//! A running job occupies a slot in its queue and one in the total. A claim first *reserves* free
//! slots, then frees the ones its jobs do not take. It may take jobs [`ahead`](super::ahead); these
//! wait in a line and take over the slots of jobs that end.
//!
//! An *internal* queue belongs to the framework, such as the queue for schedules. Its jobs run for
//! milliseconds and occupy no slot in the total, so they do not wait for application jobs. When the
//! total is scarce, each sort of queue gets its own claim.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::ahead::{BATCH, RunTime};
use super::events::{Event, Observers};
use crate::clock::Clock;
use crate::sync::lock;

#[derive(Debug)]
pub(super) struct Slots {
    state: Mutex<State>,
    /// One per claim loop; stores a permit while the loop does not wait.
    freed: Vec<Notify>,
    clock: Arc<dyn Clock>,
    observers: Observers,
}

#[derive(Debug)]
struct State {
    total: SlotCount,
    /// By queue index.
    queues: Vec<QueueSlots>,
    /// Where the next reservation starts; rotates so that queues share a scarce total.
    first_queue: usize,
    /// By claim loop: another loop had reserved slots this one needed.
    blocked: Vec<bool>,
    /// Claimed jobs without a slot, in claim order.
    line: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    queue: usize,
    claimer: usize,
    slot: oneshot::Sender<Slot>,
}

#[derive(Debug, Clone, Copy)]
struct SlotCount {
    capacity: usize,
    free: usize,
    reserved: usize,
    /// When a slot was last freed while all were in use, by [`Clock::elapsed`].
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

    /// Frees a job's slot; `run` is the job's run time, if it ran. `now` is by [`Clock::elapsed`].
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

#[derive(Debug, Clone, Copy)]
struct QueueSlots {
    count: SlotCount,
    is_internal: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    Application,
    Internal,
}

/// One queue's part in a [`Reservation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) queue: usize,
    slots: usize,
    /// Jobs that the claim may take beyond the slots.
    ahead: usize,
}

impl Share {
    pub(super) const fn jobs(self) -> usize {
        self.slots + self.ahead
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) scope: Scope,
    pub(super) queues: Vec<Share>,
    /// May be less than the sum over `queues`.
    pub(super) limit: usize,
    /// From the total.
    of_total: usize,
    /// A queue or the total had no free slot, so more jobs may be due. A claim that takes the last
    /// slots does not set it: the loop reserves again.
    pub(super) saturated: bool,
    /// The internal queues have no free slot, or there are no internal queues.
    pub(super) internal_full: bool,
    claimer: usize,
}

/// Freed on drop.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    queue: usize,
    /// By [`Clock::elapsed`].
    since: Duration,
    has_run: bool,
}

#[derive(Debug)]
pub(super) enum Place {
    Slot(Slot),
    /// The job waits for a slot. On a receive error, give the job back.
    InLine(oneshot::Receiver<Slot>),
}

impl Slots {
    /// `queues`: slot count, and whether it is internal.
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

    /// Reserves free slots for a claim by loop `claimer`: at most [`BATCH`] application jobs, and
    /// as many for each internal queue. The application may use the internal queues' unused limit,
    /// and take short jobs ahead of the slots.
    ///
    /// If the total is scarce, the claim covers only internal queues, if `prefers_internal`, or
    /// only the application's.
    ///
    /// With several claim loops, each gets a share: a slow store does not delay another store's
    /// jobs.
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
        // Jobs that can start at once come before jobs ahead.
        let room = BATCH.saturating_sub(sum_application);
        application.iter_mut().for_each(|share| share.ahead = share.ahead.min(room));
        let ahead = application.iter().map(|share| share.ahead).sum::<usize>();
        let internal_full = sum_internal == 0;
        let is_scarce = limit == 0 || sum_application > of_total;
        let (scope, queues, limit, of_total) = if !is_scarce {
            // Internal jobs first, then room for a full batch: neither sort's backlog holds up the
            // other.
            internal.extend(application);
            let of_application = (sum_application + ahead).min(BATCH);
            let limit = sum_internal + of_application;
            (Scope::All, internal, limit, sum_application.min(limit))
        } else if prefers_internal && sum_internal > 0 {
            (Scope::Internal, internal, sum_internal, 0)
        } else {
            let of_total = limit.min(sum_application);
            // By the total's run time: the next jobs may belong to any queue.
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

    /// Whether a job has waited for a slot; `due` is by [`Clock::elapsed`]. Only valid while its
    /// claim holds reserved slots: while it does, neither the queue nor the total can fill up.
    pub(super) fn has_waited(&self, queue: usize, due: Duration) -> bool {
        let state = self.lock();
        let QueueSlots { count, is_internal } = state.queues[queue];
        let of_total = state.total.full_until.filter(|_| !is_internal);
        count.full_until.max(of_total).is_some_and(|until| due < until)
    }

    /// Gives reserved slots to claimed jobs, passed as queue indexes in start order, and frees the
    /// rest. Jobs without a slot wait in line.
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
        // Other loops' jobs in line may wait for the slots that this claim did not need.
        let granted = std::iter::from_fn(|| state.next_in_line()).collect::<Vec<_>>();
        // Only other loops that were blocked: loops that notify themselves or each other after
        // every claim never sleep.
        for (claimer, freed) in self.freed.iter().enumerate() {
            if claimer != reservation.claimer && std::mem::take(&mut state.blocked[claimer]) {
                freed.notify_one();
            }
        }
        drop(guard);
        granted.into_iter().for_each(|waiting| self.grant(waiting, now));
        places
    }

    /// If the job no longer waits, the slot is dropped and so freed.
    fn grant(self: &Arc<Self>, Waiting { queue, slot, .. }: Waiting, now: Duration) {
        self.observers.notify(&Event::SlotTaken);
        let _ = slot.send(Slot::new(Arc::clone(self), queue, now));
    }

    /// Removes one claim loop's jobs from the line.
    pub(super) fn give_up(&self, claimer: usize) -> usize {
        let line = &mut self.lock().line;
        let before = line.len();
        line.retain(|waiting| waiting.claimer != claimer);
        before - line.len()
    }

    /// In total, and by queue index.
    pub(super) fn used(&self) -> (usize, Vec<usize>) {
        let state = self.lock();
        (state.total.used(), state.queues.iter().map(|queue| queue.count.used()).collect())
    }

    /// How many more jobs of a queue could run; slots reserved by claims in progress count as
    /// unused.
    pub(super) fn unused(&self, queue: usize) -> usize {
        let state = self.lock();
        let unused = |count: SlotCount| count.capacity - count.used();
        let of_queue = unused(state.queues[queue].count);
        if state.queues[queue].is_internal { of_queue } else { of_queue.min(unused(state.total)) }
    }

    pub(super) async fn freed(&self, claimer: usize) {
        self.freed[claimer].notified().await;
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

    /// `run` is the job's run time, if it ran. The first job in line that can use the slot takes it
    /// over; otherwise all claim loops wake.
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
    fn take(&mut self, queue: usize) -> bool {
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
    const fn new(slots: Arc<Slots>, queue: usize, since: Duration) -> Self {
        Self { slots, queue, since, has_run: false }
    }

    /// Returns the queue index.
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
