//! The lateness and the run time of the jobs of the last minutes, and the number of failed runs.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::model::Histogram;
use crate::sync::lock;

/// Number of minutes that are kept.
const MINUTES: u64 = 5;

/// The runs of one queue in the last minutes.
#[derive(Debug, Default)]
pub(super) struct RecentRuns {
    /// The oldest first; only minutes in which a run has ended.
    minutes: Mutex<VecDeque<Minute>>,
    /// Number of runs that have failed since the beginning.
    failed: AtomicU64,
}

#[derive(Debug)]
struct Minute {
    /// Its number, by [`Clock::elapsed`](crate::Clock::elapsed).
    number: u64,
    lateness: Histogram,
    run_time: Histogram,
}

impl RecentRuns {
    /// Counts a run. These times and those of the other methods are by
    /// [`Clock::elapsed`](crate::Clock::elapsed).
    pub(super) fn record(&self, lateness: Duration, started: Duration, ended: Duration) {
        let number = ended.as_secs() / 60;
        let mut minutes = lock(&self.minutes);
        drop_old(&mut minutes, number);
        if minutes.back().is_none_or(|minute| minute.number != number) {
            let (lateness, run_time) = (Histogram::default(), Histogram::default());
            minutes.push_back(Minute { number, lateness, run_time });
        }
        if let Some(minute) = minutes.back_mut() {
            minute.lateness.record(lateness);
            minute.run_time.record(ended.saturating_sub(started));
        }
    }

    /// Counts a run that has failed.
    pub(super) fn record_failure(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of runs that have failed since the beginning.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// The lateness and the run time of all runs of the last minutes.
    pub(super) fn histograms(&self, now: Duration) -> (Histogram, Histogram) {
        let mut minutes = lock(&self.minutes);
        drop_old(&mut minutes, now.as_secs() / 60);
        let (mut lateness, mut run_time) = (Histogram::default(), Histogram::default());
        for minute in minutes.iter() {
            lateness.merge(&minute.lateness);
            run_time.merge(&minute.run_time);
        }
        (lateness, run_time)
    }
}

fn drop_old(minutes: &mut VecDeque<Minute>, now: u64) {
    while minutes.front().is_some_and(|minute| minute.number + MINUTES <= now) {
        minutes.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_kept_for_five_minutes() {
        let recent = RecentRuns::default();
        let secs = Duration::from_secs;
        recent.record(secs(1), secs(50), secs(59));
        recent.record(secs(2), secs(60), secs(61));
        assert_eq!(recent.histograms(secs(299)).0.count(), 2);
        let (lateness, run_time) = recent.histograms(secs(300));
        assert_eq!((lateness.count(), run_time.count()), (1, 1));
        assert!(recent.histograms(secs(360)).0.is_empty());
    }
}
