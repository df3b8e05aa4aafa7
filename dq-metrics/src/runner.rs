//! The observer that records a runner's metrics.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{Event, Observer, QueueName, Settled, Verdict};
use metrics::{counter, gauge, histogram};

use crate::names::{
    self, JOBS, LATENESS, LATENESS_MISSED, LEASES_LOST, RUN, SLOTS, STORE, STORE_FAILURES,
};

/// Records one runner's metrics; add it with `runner.observer(RunnerMetrics::new())`.
///
/// Install the facade's recorder first. Each runner needs its own value.
#[derive(Debug)]
pub struct RunnerMetrics {
    /// The runner's slots; 0 until it starts.
    slots: AtomicUsize,
    /// Queues that miss their lateness objective.
    missed: Mutex<BTreeSet<QueueName>>,
}

impl RunnerMetrics {
    /// Creates an observer for one runner and describes the metrics to the recorder.
    #[must_use]
    pub fn new() -> Self {
        names::describe();
        Self { slots: AtomicUsize::new(0), missed: Mutex::default() }
    }

    fn set_missed(&self, queue: &QueueName) {
        if lock(&self.missed).insert(queue.clone()) {
            missed(queue).increment(1.0);
        }
    }

    fn set_recovered(&self, queue: &QueueName) {
        if lock(&self.missed).remove(queue) {
            missed(queue).decrement(1.0);
        }
    }
}

impl Default for RunnerMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer for RunnerMetrics {
    fn on(&self, event: &Event<'_>) {
        match event {
            Event::Starting { slots } => {
                self.slots.store(*slots, Ordering::Relaxed);
                free_slots().increment(count(*slots));
            }
            Event::Claimed { jobs, .. } => occupy(count(*jobs)),
            Event::SlotTaken => occupy(1.0),
            Event::SlotFreed => occupy(-1.0),
            Event::Started(job) => {
                seconds(&histogram!(LATENESS, "queue" => job.queue().to_string()), job.lateness());
            }
            Event::Finished { job, duration, .. } => {
                seconds(&histogram!(RUN, "queue" => job.queue().to_string()), *duration);
            }
            Event::Settled { lease, verdict, settled, repeated } => {
                // A repeated settlement is stale if the first one took effect.
                let outcome = match settled {
                    Settled::LostLease if !repeated => "stale",
                    _ => outcome(verdict),
                };
                let queue = lease.queue.to_string();
                counter!(JOBS, "queue" => queue, "outcome" => outcome).increment(1);
            }
            Event::LeaseLost(lease) => {
                counter!(LEASES_LOST, "queue" => lease.queue.to_string()).increment(1);
            }
            Event::LatenessMissed(status) => self.set_missed(&status.queue),
            Event::LatenessRecovered(status) => self.set_recovered(&status.queue),
            Event::StoreCalled { operation, duration } => {
                seconds(&histogram!(STORE, "op" => *operation), *duration);
            }
            Event::StoreFailed(error) => {
                counter!(STORE_FAILURES, "kind" => error.kind().as_str()).increment(1);
            }
            _ => {}
        }
    }
}

impl Drop for RunnerMetrics {
    /// The runner has ended.
    fn drop(&mut self) {
        for queue in lock(&self.missed).iter() {
            missed(queue).decrement(1.0);
        }
        free_slots().decrement(count(*self.slots.get_mut()));
    }
}

/// Moves slots from free to busy.
///
/// Increments, because several runners add up and events may arrive in any order.
fn occupy(slots: f64) {
    free_slots().decrement(slots);
    gauge!(SLOTS, "state" => "busy").increment(slots);
}

fn missed(queue: &QueueName) -> metrics::Gauge {
    gauge!(LATENESS_MISSED, "queue" => queue.to_string())
}

fn free_slots() -> metrics::Gauge {
    gauge!(SLOTS, "state" => "free")
}

fn seconds(histogram: &metrics::Histogram, duration: Duration) {
    histogram.record(duration.as_secs_f64());
}

/// Slots or jobs: far below 2^52.
#[allow(clippy::cast_precision_loss)]
fn count(number: usize) -> f64 {
    number as f64
}

fn outcome(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Done => "done",
        Verdict::Skip { .. } => "skip",
        Verdict::Retry { .. } => "retry",
        Verdict::Snooze(_) => "snooze",
        Verdict::Throttle(_) => "throttle",
        Verdict::Again { .. } => "again",
        Verdict::Dead { .. } => "dead",
        Verdict::Release { .. } => "release",
        _ => "other",
    }
}
