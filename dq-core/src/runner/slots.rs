//! How much runs at once: per queue, and over all queues.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::sync::lock;

/// Most jobs of one claim.
pub(super) const BATCH: usize = 100;

/// Free places for running jobs.
#[derive(Debug)]
pub(super) struct Slots {
    state: Mutex<State>,
    /// One for each pump. A permit is kept for a pump that is not waiting at the moment.
    freed: Vec<Notify>,
}

#[derive(Debug)]
struct State {
    total: Places,
    /// By the number of the queue.
    of_queue: Vec<Places>,
    /// The queue that is served first next time, so that a scarce total goes round.
    first: usize,
    /// By the number of the pump: whether a claim of another held what this one asked for.
    denied: Vec<bool>,
}

#[derive(Debug, Clone, Copy)]
struct Places {
    free: usize,
    /// Held for claims under way.
    held: usize,
}

impl Places {
    const fn new(free: usize) -> Self {
        Self { free, held: 0 }
    }

    fn hold(&mut self, places: usize) {
        self.free -= places;
        self.held += places;
    }

    fn give_back(&mut self, held: usize, used: usize) {
        self.held -= held;
        self.free += held - used;
    }
}

/// Places that are held for a claim under way.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    /// The number of a queue, and how many of its places.
    pub(super) queues: Vec<(usize, usize)>,
    /// How many places in all; less than the sum over the queues if the total is scarce.
    pub(super) limit: usize,
    /// Whether some queue, or the total, has no place left beyond these: what is due may be more
    /// than what can be claimed.
    pub(super) scarce: bool,
    /// The pump that holds them.
    pump: usize,
}

/// The place of one running job; free again when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    machine: Arc<super::Machine>,
    queue: usize,
}

impl Slots {
    pub(super) fn new(total: usize, of_queues: Vec<usize>, pumps: usize) -> Self {
        let state = State {
            total: Places::new(total),
            of_queue: of_queues.into_iter().map(Places::new).collect(),
            first: 0,
            denied: vec![false; pumps],
        };
        Self {
            state: Mutex::new(state),
            freed: std::iter::repeat_with(Notify::new).take(pumps).collect(),
        }
    }

    /// Holds free places, up to a batch: all of them, or this pump's share if there are several, so
    /// that a store that is slow to answer does not keep another's jobs waiting.
    pub(super) fn reserve(&self, pump: usize) -> Reservation {
        let pumps = self.freed.len();
        let mut guard = self.lock();
        let state = &mut *guard;
        let limit = state.total.free.div_ceil(pumps).min(BATCH);
        let mut reservation =
            Reservation { queues: Vec::new(), limit: 0, scarce: limit == 0, pump };
        state.denied[pump] = limit == 0 && state.total.held > 0;
        if limit == 0 {
            return reservation;
        }
        let count = state.of_queue.len();
        for queue in (state.first..count).chain(0..state.first) {
            let places = &mut state.of_queue[queue];
            let share = places.free.div_ceil(pumps).min(limit);
            if share == 0 {
                reservation.scarce = true;
                state.denied[pump] |= places.held > 0;
                continue;
            }
            places.hold(share);
            reservation.queues.push((queue, share));
        }
        let wanted: usize = reservation.queues.iter().map(|(_, places)| places).sum();
        reservation.limit = limit.min(wanted);
        state.total.hold(reservation.limit);
        state.first = if count == 0 { 0 } else { (state.first + 1) % count };
        reservation
    }

    /// Gives back what a claim did not use: `used` counts by the number of the queue.
    pub(super) fn give_back(&self, reservation: &Reservation, used: impl Fn(usize) -> usize) {
        let mut state = self.lock();
        let mut used_in_all = 0;
        for (queue, places) in &reservation.queues {
            let used = used(*queue).min(*places);
            state.of_queue[*queue].give_back(*places, used);
            used_in_all += used;
        }
        state.total.give_back(reservation.limit, used_in_all.min(reservation.limit));
        // Only others, and only those who were denied: pumps that told themselves or each other of
        // every claim would never rest.
        for (pump, freed) in self.freed.iter().enumerate() {
            if pump != reservation.pump && std::mem::take(&mut state.denied[pump]) {
                freed.notify_one();
            }
        }
    }

    /// Waits until a place was freed since the last wait of this pump.
    pub(super) async fn freed(&self, pump: usize) {
        self.freed[pump].notified().await;
    }

    /// Lets those that end in this moment free their places too, for one claim: until a turn of all
    /// others has freed none, or there are enough.
    pub(super) async fn gathered(&self) {
        let mut free = self.lock().total.free;
        while free < BATCH {
            tokio::task::yield_now().await;
            let before = std::mem::replace(&mut free, self.lock().total.free);
            if free <= before {
                return;
            }
        }
    }

    fn free(&self, queue: usize) {
        let mut state = self.lock();
        state.total.free += 1;
        state.of_queue[queue].free += 1;
        drop(state);
        for pump in &self.freed {
            pump.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Slot {
    /// The place that a claim used for a job of this queue.
    pub(super) fn new(machine: Arc<super::Machine>, queue: usize) -> Self {
        Self { machine, queue }
    }

    pub(super) const fn queue(&self) -> usize {
        self.queue
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.machine.slots.free(self.queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn several_pumps_leave_places_to_each_other() {
        let slots = Slots::new(100, vec![2], 2);
        let slow = slots.reserve(0);
        assert_eq!((slow.queues[0].1, slow.limit), (1, 1));
        let other = slots.reserve(1);
        assert_eq!(other.queues, [(0, 1)]);
        let denied = slots.reserve(0);
        assert!(denied.scarce && denied.queues.is_empty());
        let told =
            async || tokio::time::timeout(std::time::Duration::ZERO, slots.freed(0)).await.is_ok();
        slots.give_back(&denied, |_| 0);
        assert!(!told().await, "nobody tells himself");
        slots.give_back(&other, |_| 0);
        assert!(told().await, "who was denied is told");
        slots.give_back(&slow, |_| 0);
        assert!(!told().await, "who was not denied is not told");
    }

    #[test]
    fn a_scarce_total_goes_round_and_nothing_leaks() {
        let slots = Slots::new(3, vec![2, 2, 2], 1);
        let first = slots.reserve(0);
        assert_eq!(first.queues, [(0, 2), (1, 2), (2, 2)]);
        assert_eq!(first.limit, 3);
        assert!(slots.reserve(0).queues.is_empty(), "the total is used up");
        slots.give_back(&first, |queue| usize::from(queue == 0));
        let second = slots.reserve(0);
        assert_eq!(second.queues[0].0, 1, "another queue comes first");
        assert_eq!(second.limit, 2);
        slots.give_back(&second, |_| 0);
        slots.free(0);
        let state = slots.lock();
        assert_eq!((state.total.free, state.total.held), (3, 0));
        assert!(state.of_queue.iter().all(|places| (places.free, places.held) == (2, 0)));
    }
}
