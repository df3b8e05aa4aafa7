//! A queue's lateness and run times in the last minutes, and its failure count.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::model::Histogram;
use crate::sync::lock;

const MINUTES: u64 = 5;

#[derive(Debug, Default)]
pub(super) struct RecentRuns {
    /// Oldest first; only minutes in which a run has ended.
    minutes: Mutex<VecDeque<Minute>>,
    failed: AtomicU64,
}

#[derive(Debug)]
struct Minute {
    /// By [`Clock::elapsed`](crate::Clock::elapsed).
    number: u64,
    lateness: Histogram,
    run_time: Histogram,
}

impl RecentRuns {
    /// Counts a run; the times here are by [`Clock::elapsed`](crate::Clock::elapsed).
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

    pub(super) fn record_failure(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

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
