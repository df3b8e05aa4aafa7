//! A queue's recent runs: lateness, run times and failures for announcements, and the starts that
//! its lateness objective counts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::model::{Flow, Histogram, Job, LatenessCause, LatenessCounts, LatenessObjective};
use crate::sync::lock;

/// A sliding window: one value for each recent period, such as each of the last five minutes.
#[derive(Debug)]
struct Window<T> {
    period: Duration,
    kept_periods: u64,
    /// Period numbers and values, oldest first. Periods without a value are left out.
    values: VecDeque<(u64, T)>,
}

impl<T: Default> Window<T> {
    /// Creates a window over the current period and those before it, `kept_periods` in all.
    const fn new(period: Duration, kept_periods: u64) -> Self {
        Self { period, kept_periods, values: VecDeque::new() }
    }

    fn current(&mut self, now: Duration) -> &mut T {
        let period_number = self.drop_old(now);
        if self.values.back().is_none_or(|(last, _)| *last != period_number) {
            self.values.push_back((period_number, T::default()));
        }
        let (_, value) = self.values.back_mut().expect("it was just added");
        value
    }

    fn recent(&mut self, now: Duration) -> impl Iterator<Item = &T> {
        self.drop_old(now);
        self.values.iter().map(|(_, value)| value)
    }

    fn drop_old(&mut self, now: Duration) -> u64 {
        let current = now.as_secs() / self.period.as_secs();
        while self.values.front().is_some_and(|(number, _)| number + self.kept_periods <= current) {
            self.values.pop_front();
        }
        current
    }
}

const MINUTE: Duration = Duration::from_secs(60);
const KEPT_MINUTES: u64 = 5;

#[derive(Debug)]
pub(super) struct RecentRuns {
    by_minute: Mutex<Window<RunHistograms>>,
    failed: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct RunHistograms {
    pub(super) lateness: Histogram,
    pub(super) run_time: Histogram,
}

impl RecentRuns {
    pub(super) const fn new() -> Self {
        let by_minute = Mutex::new(Window::new(MINUTE, KEPT_MINUTES));
        Self { by_minute, failed: AtomicU64::new(0) }
    }

    /// Counts a run. `started` and `ended` are by [`Clock::elapsed`](crate::Clock::elapsed).
    pub(super) fn record(&self, lateness: Duration, started: Duration, ended: Duration) {
        let mut by_minute = lock(&self.by_minute);
        let minute = by_minute.current(ended);
        minute.lateness.record(lateness);
        minute.run_time.record(ended.saturating_sub(started));
    }

    pub(super) fn record_failure(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    pub(super) fn histograms(&self, now: Duration) -> RunHistograms {
        let mut sum = RunHistograms::default();
        for minute in lock(&self.by_minute).recent(now) {
            sum.lateness.merge(&minute.lateness);
            sum.run_time.merge(&minute.run_time);
        }
        sum
    }
}

const PERIOD: Duration = Duration::from_secs(300);
const KEPT_PERIODS: u64 = 12;

#[derive(Debug)]
pub(super) struct StartWindow {
    pub(super) objective: LatenessObjective,
    by_period: Mutex<Window<Starts>>,
    /// No other runner served the queue when this one started.
    was_unserved: AtomicBool,
    last_comparison: Mutex<Option<Comparison>>,
}

/// What a comparison with the objective found in the store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Comparison {
    /// The limits in force.
    pub(super) flow: Flow,
    /// Why late jobs were held back.
    pub(super) hindrance: Option<LatenessCause>,
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
        Self {
            objective,
            by_period,
            was_unserved: AtomicBool::new(false),
            last_comparison: Mutex::default(),
        }
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

    pub(super) fn note_comparison(&self, found: Comparison) {
        *lock(&self.last_comparison) = Some(found);
    }

    /// Returns why the store may have held back a job that waited for nothing else. Before the
    /// first comparison, its limits are those `declared`.
    pub(super) fn hindrance(&self, job: &Job, declared: Flow) -> Option<LatenessCause> {
        let last = *lock(&self.last_comparison);
        let Comparison { flow, hindrance } =
            last.unwrap_or(Comparison { flow: declared, hindrance: None });
        let of_queue = flow.rate.map(|_| LatenessCause::Rate);
        let of_queue = of_queue.or(flow.max_running.map(|_| LatenessCause::MaxRunning));
        let of_group = flow.group_max_running.map(|_| LatenessCause::GroupFull);
        let fits =
            |cause: &LatenessCause| *cause != LatenessCause::GroupFull || job.group().is_some();
        [hindrance, of_queue, of_group].into_iter().flatten().find(fits)
    }

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
    fn values_are_kept_for_the_given_number_of_periods() {
        let secs = Duration::from_secs;
        let mut window: Window<u64> = Window::new(secs(60), 5);
        for second in 0..1_000 {
            *window.current(secs(second)) += 1;
        }
        assert_eq!(window.values.len(), 5);
        // The oldest period begins at 720 s; the current one began at 960 s.
        let sum = |window: &mut Window<u64>, now| window.recent(now).sum::<u64>();
        for (now, wanted) in [(999, 280), (1_020, 220), (1_200, 40), (1_260, 0)] {
            assert_eq!(sum(&mut window, secs(now)), wanted, "at {now} s");
        }
    }

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
