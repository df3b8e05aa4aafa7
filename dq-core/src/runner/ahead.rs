//! How many jobs a claim may take beyond the free slots.
//!
//! A store call costs nearly the same for a hundred jobs as for one. So a claim also takes the jobs
//! that will start within [`HORIZON`]; they wait in this process for a slot. If jobs are longer, it
//! takes only as many as there are free slots: no job waits in one process while another has a free
//! slot.

use std::time::Duration;

/// Maximum number of jobs per settlement, per renewal, and of application jobs per claim.
pub(crate) const BATCH: usize = 100;

/// A claim takes only jobs expected to start within this time.
const HORIZON: Duration = Duration::from_millis(5);

/// A claimed job still without a slot is given back: the estimate was wrong, and another process
/// may have a slot.
pub(super) const MAX_HOLD: Duration = Duration::from_millis(10);

/// Expected slot time of the next job. A longer job raises it at once, shorter jobs lower it
/// gradually.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunTime(Option<Duration>);

impl RunTime {
    pub(super) const NEW: Self = Self(None);

    pub(super) fn record(&mut self, took: Duration) {
        let lowered =
            self.0.map_or(took, |estimate| estimate - (estimate.saturating_sub(took)) / 8);
        self.0 = Some(lowered.max(took));
    }

    /// Returns how many jobs start within [`HORIZON`] after each slot's first; at most [`BATCH`].
    pub(super) fn ahead(self, slots: usize) -> usize {
        let Some(run_time) = self.0 else { return 0 };
        let turns = HORIZON.as_nanos() / run_time.as_nanos().max(1);
        let turns = usize::try_from(turns).unwrap_or(BATCH).min(BATCH + 1);
        slots.saturating_mul(turns.saturating_sub(1)).min(BATCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_jobs_are_claimed_ahead() {
        let mut run_time = RunTime::NEW;
        assert_eq!(run_time.ahead(16), 0, "nothing is known yet");
        for (micros, ahead) in [(5_000, 0), (2_400, 16), (1_200, 48)] {
            for _ in 0..100 {
                run_time.record(Duration::from_micros(micros));
            }
            assert_eq!(run_time.ahead(16), ahead, "{micros} µs");
        }
        assert_eq!(run_time.ahead(0), 0);
        run_time.record(Duration::from_secs(1));
        assert_eq!(run_time.ahead(16), 0, "one long job is enough");
    }
}
