//! A queue's starts in the last hour: how many were late, and why.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::window::Window;
use crate::model::{LatenessCause, LatenessCounts, LatenessObjective};
use crate::sync::lock;

const PERIOD: Duration = Duration::from_secs(300);
/// An hour.
const KEPT_PERIODS: u64 = 12;

/// The starts to compare with a queue's lateness objective.
#[derive(Debug)]
pub(super) struct StartWindow {
    pub(super) objective: LatenessObjective,
    by_period: Mutex<Window<Starts>>,
    /// No other runner served the queue when this one started.
    was_unserved: AtomicBool,
}

#[derive(Debug, Default)]
struct Starts {
    in_time: u64,
    late: BTreeMap<LateStart, u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LateStart {
    pub(super) cause: Option<LatenessCause>,
    pub(super) due_before_runner_start: bool,
}

impl StartWindow {
    pub(super) fn new(objective: LatenessObjective) -> Self {
        let by_period = Mutex::new(Window::new(PERIOD, KEPT_PERIODS));
        Self { objective, by_period, was_unserved: AtomicBool::new(false) }
    }

    /// Counts a start; `late` is `None` for one in time. `now` is by
    /// [`Clock::elapsed`](crate::Clock::elapsed).
    pub(super) fn record(&self, now: Duration, late: Option<LateStart>) {
        let mut by_period = lock(&self.by_period);
        let starts = by_period.current(now);
        match late {
            None => starts.in_time += 1,
            Some(late) => *starts.late.entry(late).or_default() += 1,
        }
    }

    /// After this call, jobs due before this runner started count as late because no runner
    /// existed.
    pub(super) fn set_unserved(&self) {
        self.was_unserved.store(true, Ordering::Relaxed);
    }

    /// Returns the last hour's counts, with the most frequent cause of late starts.
    pub(super) fn counts(&self, now: Duration) -> LatenessCounts {
        let was_unserved = self.was_unserved.load(Ordering::Relaxed);
        let mut counts = LatenessCounts::new(self.objective);
        let mut by_cause: BTreeMap<LatenessCause, u64> = BTreeMap::new();
        for starts in lock(&self.by_period).recent(now) {
            counts.in_time += starts.in_time;
            for (start, count) in &starts.late {
                counts.late += count;
                let waited_for_runner = was_unserved && start.due_before_runner_start;
                let cause =
                    if waited_for_runner { Some(LatenessCause::NoRunner) } else { start.cause };
                if let Some(cause) = cause {
                    *by_cause.entry(cause).or_default() += count;
                }
            }
        }
        counts.cause = by_cause.iter().max_by_key(|(_, count)| **count).map(|(cause, _)| *cause);
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_cause_is_named() {
        let (window, now) =
            (StartWindow::new("99% < 100ms".parse().unwrap()), Duration::from_secs(7));
        let record = |cause, due_before_runner_start| {
            window.record(now, Some(LateStart { cause, due_before_runner_start }));
            window.counts(now).cause
        };
        assert_eq!(record(None, false), None);
        assert_eq!(record(Some(LatenessCause::StoreSlow), false), Some(LatenessCause::StoreSlow));
        record(Some(LatenessCause::SlotsFull), true);
        let most_frequent = record(Some(LatenessCause::SlotsFull), true);
        assert_eq!(most_frequent, Some(LatenessCause::SlotsFull));

        window.set_unserved();
        let counts = window.counts(now);
        assert_eq!((counts.late, counts.cause), (4, Some(LatenessCause::NoRunner)));
    }
}
