//! How much runs at once: per queue, and over all queues.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

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
    free: usize,
    /// By the number of the queue.
    free_of: Vec<usize>,
    /// The queue that is served first next time, so that a scarce total goes round.
    first: usize,
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
}

/// The place of one running job; free again when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    machine: Arc<super::Machine>,
    queue: usize,
}

impl Slots {
    pub(super) fn new(total: usize, of_queues: Vec<usize>, pumps: usize) -> Self {
        Self {
            state: Mutex::new(State { free: total, free_of: of_queues, first: 0 }),
            freed: std::iter::repeat_with(Notify::new).take(pumps).collect(),
        }
    }

    /// Holds free places, up to a batch: all of them, or this pump's share if there are several, so
    /// that a store that is slow to answer does not keep another's jobs waiting.
    pub(super) fn reserve(&self) -> Reservation {
        let pumps = self.freed.len();
        let mut state = self.lock();
        let limit = state.free.div_ceil(pumps).min(BATCH);
        let mut reservation = Reservation { queues: Vec::new(), limit: 0, scarce: limit == 0 };
        if limit == 0 {
            return reservation;
        }
        let count = state.free_of.len();
        let first = state.first;
        for queue in (first..count).chain(0..first) {
            let places = state.free_of[queue].div_ceil(pumps).min(limit);
            if places == 0 {
                reservation.scarce = true;
                continue;
            }
            state.free_of[queue] -= places;
            reservation.queues.push((queue, places));
        }
        let wanted: usize = reservation.queues.iter().map(|(_, places)| places).sum();
        reservation.limit = limit.min(wanted);
        state.free -= reservation.limit;
        state.first = if count == 0 { 0 } else { (first + 1) % count };
        reservation
    }

    /// Gives back what a claim did not use: `used` counts by the number of the queue.
    pub(super) fn give_back(&self, reservation: &Reservation, used: impl Fn(usize) -> usize) {
        let mut state = self.lock();
        let mut used_in_all = 0;
        for (queue, places) in &reservation.queues {
            let used = used(*queue).min(*places);
            state.free_of[*queue] += places - used;
            used_in_all += used;
        }
        let unused = reservation.limit.saturating_sub(used_in_all);
        state.free += unused;
        drop(state);
        if unused > 0 && self.freed.len() > 1 {
            self.tell_pumps();
        }
    }

    /// Waits until a place was freed since the last wait of this pump.
    pub(super) async fn freed(&self, pump: usize) {
        self.freed[pump].notified().await;
    }

    fn free(&self, queue: usize) {
        let mut state = self.lock();
        state.free += 1;
        state.free_of[queue] += 1;
        drop(state);
        self.tell_pumps();
    }

    fn tell_pumps(&self) {
        for pump in &self.freed {
            pump.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    #[test]
    fn several_pumps_leave_places_to_each_other() {
        let slots = Slots::new(100, vec![4], 2);
        let slow = slots.reserve();
        assert_eq!((slow.queues[0].1, slow.limit), (2, 2));
        assert_eq!(slots.reserve().queues, [(0, 1)]);
    }

    #[test]
    fn a_scarce_total_goes_round_and_nothing_leaks() {
        let slots = Slots::new(3, vec![2, 2, 2], 1);
        let first = slots.reserve();
        assert_eq!(first.queues, [(0, 2), (1, 2), (2, 2)]);
        assert_eq!(first.limit, 3);
        assert!(slots.reserve().queues.is_empty(), "the total is used up");
        slots.give_back(&first, |queue| usize::from(queue == 0));
        let second = slots.reserve();
        assert_eq!(second.queues[0].0, 1, "another queue comes first");
        assert_eq!(second.limit, 2);
        slots.give_back(&second, |_| 0);
        slots.free(0);
        assert_eq!(slots.lock().free, 3);
        assert_eq!(slots.lock().free_of, [2, 2, 2]);
    }
}
