//! A queue's starts in the last hour: how many were late, and why.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::model::{LatenessCause, LatenessCounts, LatenessObjective};
use crate::sync::lock;

const WINDOW: Duration = Duration::from_secs(3_600);
const PART: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(super) struct StartWindow {
    pub(super) objective: LatenessObjective,
    /// Oldest first; only parts with a start.
    parts: Mutex<VecDeque<Part>>,
    /// No other runner served the queue when this one started.
    was_unserved: AtomicBool,
}

#[derive(Debug, Default)]
struct Part {
    /// Part number, by [`Clock::elapsed`](crate::Clock::elapsed).
    number: u64,
    in_time: u64,
    /// Counts of late starts.
    late: BTreeMap<LateStart, u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LateStart {
    pub(super) cause: Option<LatenessCause>,
    pub(super) due_before_runner_start: bool,
}

impl StartWindow {
    pub(super) fn new(objective: LatenessObjective) -> Self {
        Self { objective, parts: Mutex::default(), was_unserved: AtomicBool::new(false) }
    }

    /// Counts a start; `now` is by [`Clock::elapsed`](crate::Clock::elapsed).
    pub(super) fn record(&self, now: Duration, late: Option<LateStart>) {
        let number = part_number(now);
        let mut parts = lock(&self.parts);
        drop_old(&mut parts, number);
        if parts.back().is_none_or(|part| part.number != number) {
            parts.push_back(Part { number, ..Part::default() });
        }
        if let Some(part) = parts.back_mut() {
            match late {
                None => part.in_time += 1,
                Some(late) => *part.late.entry(late).or_default() += 1,
            }
        }
    }

    /// After this call, jobs due before this runner started count as late because no runner
    /// existed.
    pub(super) fn set_unserved(&self) {
        self.was_unserved.store(true, Ordering::Relaxed);
    }

    pub(super) fn counts(&self, now: Duration) -> LatenessCounts {
        let was_unserved = self.was_unserved.load(Ordering::Relaxed);
        let mut parts = lock(&self.parts);
        drop_old(&mut parts, part_number(now));
        let mut counts = LatenessCounts::new(self.objective);
        let mut by_cause: BTreeMap<LatenessCause, u64> = BTreeMap::new();
        for part in parts.iter() {
            counts.in_time += part.in_time;
            for (start, count) in &part.late {
                counts.late += count;
                let waited_for_runner = was_unserved && start.due_before_runner_start;
                let no_runner = waited_for_runner.then_some(LatenessCause::NoRunner);
                if let Some(cause) = no_runner.or(start.cause) {
                    *by_cause.entry(cause).or_default() += count;
                }
            }
        }
        counts.cause = by_cause.iter().max_by_key(|(_, count)| **count).map(|(cause, _)| *cause);
        counts
    }
}

const fn part_number(now: Duration) -> u64 {
    now.as_secs() / PART.as_secs()
}

fn drop_old(parts: &mut VecDeque<Part>, current_number: u64) {
    let kept = WINDOW.as_secs() / PART.as_secs();
    while parts.front().is_some_and(|part| part.number + kept <= current_number) {
        parts.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window() -> StartWindow {
        StartWindow::new("99% < 100ms".parse().unwrap())
    }

    const fn late(
        cause: Option<LatenessCause>,
        due_before_runner_start: bool,
    ) -> Option<LateStart> {
        Some(LateStart { cause, due_before_runner_start })
    }

    #[test]
    fn starts_are_kept_for_an_hour_in_twelve_parts() {
        let window = window();
        for second in 0..10_000 {
            window.record(Duration::from_secs(second), None);
        }
        assert_eq!(lock(&window.parts).len(), 12);
        // From 6,600 s, where a part begins.
        assert_eq!(window.counts(Duration::from_secs(9_999)).in_time, 3_400);
        assert_eq!(window.counts(Duration::from_secs(10_200)).in_time, 3_100);
        assert_eq!(window.counts(Duration::from_secs(13_200)).in_time, 100);
        assert_eq!(window.counts(Duration::from_secs(13_500)).in_time, 0);
    }

    #[test]
    fn the_most_frequent_cause_is_named() {
        let (window, now) = (window(), Duration::from_secs(7));
        assert_eq!(window.counts(now).cause, None);
        window.record(now, late(None, false));
        window.record(now, late(None, false));
        assert_eq!((window.counts(now).late, window.counts(now).cause), (2, None));
        window.record(now, late(Some(LatenessCause::StoreSlow), false));
        assert_eq!(window.counts(now).cause, Some(LatenessCause::StoreSlow));
        for _ in 0..2 {
            window.record(now, late(Some(LatenessCause::SlotsFull), true));
        }
        assert_eq!(window.counts(now).cause, Some(LatenessCause::SlotsFull));
        window.set_unserved();
        assert_eq!(window.counts(now).cause, Some(LatenessCause::NoRunner));
        assert_eq!(window.counts(now).late, 5);
    }
}
