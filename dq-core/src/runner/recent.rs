//! A queue's lateness and run times in the last minutes, and its failure count.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::window::Window;
use crate::model::Histogram;
use crate::sync::lock;

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

    /// Returns the histograms of the runs that ended in the last minutes.
    pub(super) fn histograms(&self, now: Duration) -> RunHistograms {
        let mut sum = RunHistograms::default();
        for minute in lock(&self.by_minute).recent(now) {
            sum.lateness.merge(&minute.lateness);
            sum.run_time.merge(&minute.run_time);
        }
        sum
    }
}
