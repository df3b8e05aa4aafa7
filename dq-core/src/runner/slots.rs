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

    /// Frees the slot of a job that has taken it at `since` and ends now, by [`Clock::elapsed`].
    fn free(&mut self, since: Duration, now: Duration) {
        if self.used() == self.capacity {
            self.full_until = Some(now);
        }
        self.free += 1;
        self.run_time.record(now.saturating_sub(since));
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
            let ahead = ahead.min(BATCH.saturating_sub(share));
            shares.push(Share { queue, slots: share, ahead });
        }
        let sum = |shares: &[Share]| shares.iter().map(|share| share.slots).sum::<usize>();
        let (sum_application, sum_internal) = (sum(&application), sum(&internal));
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
                return Place::Slot(Slot { slots: Arc::clone(self), queue, since: now });
            }
            let (slot, place) = oneshot::channel();
            state.line.push_back(Waiting { queue, claimer: reservation.claimer, slot });
            Place::InLine(place)
        };
        let places = jobs.into_iter().map(place).collect();
        // Notifies only other loops that were blocked: loops that notified themselves or each other
        // after every claim would never sleep.
        for (claimer, freed) in self.freed.iter().enumerate() {
            if claimer != reservation.claimer && std::mem::take(&mut state.blocked[claimer]) {
                freed.notify_one();
            }
        }
        places
    }

    /// Gives up the places in line of the jobs of one claim loop.
    pub(super) fn give_up(&self, claimer: usize) {
        self.lock().line.retain(|waiting| waiting.claimer != claimer);
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

    /// Frees the slot of a job that has ended. The first job in line that can use it takes it over;
    /// if there is none, all claim loops are woken.
    fn free(self: &Arc<Self>, queue: usize, since: Duration) {
        let now = self.clock.elapsed();
        let mut state = self.lock();
        state.queues[queue].count.free(since, now);
        let is_internal = state.queues[queue].is_internal;
        if !is_internal {
            state.total.free(since, now);
        }
        let next = state.next_in_line();
        drop(state);
        if let Some(Waiting { queue, slot, .. }) = next {
            // A job that waits no more drops the slot, so that the next one gets it.
            let _ = slot.send(Slot { slots: Arc::clone(self), queue, since: now });
            return;
        }
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
    pub(super) const fn queue(&self) -> usize {
        self.queue
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.free(self.queue, self.since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::VirtualClock;

    /// Slots of queues of the application, and of an internal one with the next index.
    fn slots(
        total: usize,
        queues: &[usize],
        internal: Option<usize>,
        claimers: usize,
    ) -> Arc<Slots> {
        let internal = internal.map(|slots| (slots, true));
        let queues = queues.iter().map(|slots| (*slots, false)).chain(internal);
        let clock = Arc::new(VirtualClock::default());
        clock.advance(Duration::from_secs(1));
        with_clock(total, queues, claimers, clock)
    }

    fn with_clock(
        total: usize,
        queues: impl IntoIterator<Item = (usize, bool)>,
        claimers: usize,
        clock: Arc<VirtualClock>,
    ) -> Arc<Slots> {
        Arc::new(Slots::new(total, queues, claimers, clock, Observers::default()))
    }

    /// The queues of a reservation, each with its reserved slots.
    fn shares(reservation: &Reservation) -> Vec<(usize, usize)> {
        reservation.queues.iter().map(|share| (share.queue, share.slots)).collect()
    }

    /// Gives each queue as many of its reserved slots as the function says. The slots are not freed.
    fn fill(slots: &Arc<Slots>, reservation: &Reservation, jobs: impl Fn(usize) -> usize) {
        let of_queue = |share: &Share| vec![share.queue; jobs(share.queue)];
        let jobs: Vec<_> = reservation.queues.iter().flat_map(of_queue).collect();
        for place in slots.fill(reservation, jobs) {
            let Place::Slot(slot) = place else { panic!("no slot") };
            std::mem::forget(slot);
        }
    }

    /// Frees the slot of a job that took a second.
    fn free(slots: &Arc<Slots>, queue: usize) {
        slots.free(queue, slots.clock.elapsed() - Duration::from_secs(1));
    }

    #[tokio::test]
    async fn several_claim_loops_share_slots_and_wake_each_other() {
        let slots = slots(100, &[2], None, 2);
        let slow = slots.reserve(0, false);
        assert_eq!((slow.queues[0].slots, slow.limit), (1, 1));
        let other = slots.reserve(1, false);
        assert_eq!(shares(&other), [(0, 1)]);
        let blocked = slots.reserve(0, false);
        assert!(blocked.saturated && blocked.queues.is_empty());
        let notified =
            async || tokio::time::timeout(std::time::Duration::ZERO, slots.freed(0)).await.is_ok();
        fill(&slots, &blocked, |_| 0);
        assert!(!notified().await, "a loop does not notify itself");
        fill(&slots, &other, |_| 0);
        assert!(notified().await, "a blocked loop is notified");
        fill(&slots, &slow, |_| 0);
        assert!(!notified().await, "a loop that is not blocked is not notified");
    }

    #[test]
    fn a_scarce_total_rotates_over_queues_and_no_slot_leaks() {
        let slots = slots(3, &[2, 2, 2], None, 1);
        let first = slots.reserve(0, false);
        assert_eq!(shares(&first), [(0, 2), (1, 2), (2, 2)]);
        assert_eq!(first.limit, 3);
        assert!(slots.reserve(0, false).queues.is_empty(), "the total is used up");
        fill(&slots, &first, |queue| usize::from(queue == 0));
        let second = slots.reserve(0, false);
        assert_eq!(second.queues[0].queue, 1, "another queue comes first");
        assert_eq!(second.limit, 2);
        assert_eq!(slots.used(), (1, vec![1, 0, 0]), "reserved slots are not used");
        assert_eq!([0, 1].map(|queue| slots.unused(queue)), [1, 2]);
        fill(&slots, &second, |_| 0);
        free(&slots, 0);
        let state = slots.lock();
        assert_eq!((state.total.free, state.total.reserved), (3, 0));
        let counts = state.queues.iter().map(|queue| queue.count);
        assert!(counts.clone().all(|count| (count.free, count.reserved) == (2, 0)));
    }

    #[test]
    fn a_job_has_waited_if_it_was_due_while_the_slots_were_full() {
        let clock = Arc::new(VirtualClock::default());
        let slots = with_clock(2, [(1, false), (2, false)], 1, clock.clone());
        let start = clock.elapsed();
        let first = slots.reserve(0, false);
        assert!(!slots.has_waited(0, start), "none has been used yet");
        fill(&slots, &first, |queue| usize::from(queue == 0));
        clock.advance(Duration::from_secs(1));
        free(&slots, 0);
        let second = slots.reserve(0, false);
        let freed = start + Duration::from_secs(1);
        assert!(slots.has_waited(0, start) && !slots.has_waited(0, freed));
        assert!(!slots.has_waited(1, start), "the other queue and the total had free slots");
        fill(&slots, &second, |_| 1);
        clock.advance(Duration::from_secs(1));
        free(&slots, 0);
        let _third = slots.reserve(0, false);
        assert!(slots.has_waited(1, freed), "the total was full");
    }

    #[test]
    fn internal_queues_have_slots_outside_the_total() {
        let slots = slots(3, &[2], Some(5), 1);
        let all = slots.reserve(0, false);
        assert_eq!((all.scope, all.limit), (Scope::All, 7));
        assert_eq!(shares(&all), [(1, 5), (0, 2)]);
        fill(&slots, &all, |queue| [2, 1][queue]);
        assert_eq!(slots.used(), (2, vec![2, 1]), "one job is not of the total");

        // A slot of the total is free, but none of the queue.
        let rest = slots.reserve(0, false);
        assert_eq!((rest.scope, &shares(&rest)[..], rest.limit), (Scope::All, &[(1, 4)][..], 4));
        fill(&slots, &rest, |_| 4);
        let full = slots.reserve(0, true);
        assert!(full.internal_full && full.saturated && full.queues.is_empty());
        fill(&slots, &full, |_| 0);
        for queue in [0, 0, 1, 1, 1, 1, 1] {
            free(&slots, queue);
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
        assert_eq!(shares(&all), [(2, BATCH), (0, BATCH), (1, BATCH)]);
        assert_eq!(all.limit, 2 * BATCH);
        // No internal job is due, so the limit is used up by the others.
        fill(&slots, &all, |queue| [BATCH, BATCH, 0][queue]);
        assert_eq!(slots.used(), (2 * BATCH, vec![BATCH, BATCH, 0]));
        assert_eq!(slots.lock().total.free, 1_000 - 2 * BATCH);
    }

    #[test]
    fn a_scarce_total_makes_claims_of_their_own_for_internal_queues() {
        let slots = slots(3, &[2, 2], Some(5), 1);
        let application = slots.reserve(0, false);
        assert_eq!((application.scope, application.limit), (Scope::Application, 3));
        fill(&slots, &application, |queue| [2, 1, 0][queue]);
        assert_eq!(slots.reserve(0, false).limit, 0, "the total is used up");
        let internal = slots.reserve(0, true);
        assert_eq!((internal.scope, internal.limit), (Scope::Internal, 5));
        assert_eq!(shares(&internal), [(2, 5)]);
        fill(&slots, &internal, |_| 5);
        assert_eq!(slots.used(), (3, vec![2, 1, 5]));
    }

    /// A queue whose jobs take no time.
    fn short_jobs(total: usize, slots: usize, claimers: usize) -> Arc<Slots> {
        let slots = self::slots(total, &[slots], None, claimers);
        let first = slots.reserve(0, false);
        assert_eq!(first.queues[0].ahead, 0, "no job has run yet");
        drop(slots.fill(&first, [0]));
        slots
    }

    #[test]
    fn short_jobs_are_claimed_ahead_and_take_over_the_slots_of_those_that_end() {
        let slots = short_jobs(2, 2, 1);
        let claim = slots.reserve(0, false);
        assert_eq!((shares(&claim), claim.limit), (vec![(0, 2)], BATCH));
        let places = slots.fill(&claim, [0; 4]);
        let [Place::Slot(first), Place::Slot(second), Place::InLine(third), Place::InLine(fourth)] =
            <[Place; 4]>::try_from(places).unwrap()
        else {
            panic!("two slots and two places in line");
        };
        let (mut third, mut fourth) = (third, fourth);
        assert_eq!(slots.used().0, 2, "jobs in line occupy no slot");
        assert!(slots.reserve(0, false).queues.is_empty());
        drop(second);
        let third = third.try_recv().expect("the first in line has the slot");
        assert!(fourth.try_recv().is_err());
        slots.give_up(0);
        assert!(matches!(fourth.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        drop((first, third));
        assert_eq!(slots.used().0, 0);
    }

    #[test]
    fn a_job_that_has_left_the_line_passes_its_slot_on() {
        let slots = short_jobs(1, 1, 1);
        let mut places = slots.fill(&slots.reserve(0, false), [0; 3]);
        let (Some(Place::InLine(mut last)), Some(second), Some(first)) =
            (places.pop(), places.pop(), places.pop())
        else {
            panic!("two places in line");
        };
        drop(second);
        drop(first);
        drop(last.try_recv().expect("the last job has the slot"));
        assert_eq!(slots.used().0, 0);
    }

    #[test]
    fn a_job_in_line_waits_for_a_slot_that_it_can_use() {
        // Two queues with one slot each, and two slots in total.
        let slots = self::slots(2, &[1, 1], None, 1);
        let claim = slots.reserve(0, false);
        let mut places = slots.fill(&claim, [0, 1, 0]);
        let Some(Place::InLine(mut waiting)) = places.pop() else { panic!("no place in line") };
        drop(places.pop());
        assert!(waiting.try_recv().is_err(), "that slot is of the other queue");
        drop(places.pop());
        assert!(waiting.try_recv().is_ok());
    }

    #[test]
    fn a_scarce_total_is_claimed_ahead_only_if_the_jobs_of_all_queues_are_short() {
        let slots = self::slots(2, &[2, 2], None, 1);
        drop(slots.fill(&slots.reserve(0, false), [0, 1]));
        let claim = slots.reserve(0, false);
        assert_eq!((claim.scope, claim.limit), (Scope::Application, BATCH));
        fill(&slots, &claim, |queue| usize::from(queue == 1));
        free(&slots, 1);
        let claim = slots.reserve(0, false);
        assert_eq!(claim.limit, 2);
        let jobs = claim.queues.iter().map(|share| share.jobs()).collect::<Vec<_>>();
        assert!(jobs.contains(&BATCH) && jobs.contains(&2), "{jobs:?}");
    }
}
