//! The delay between the attempts of a failing job.

use std::time::Duration;

/// The delay before the next attempt: `initial * factor^(failed - 1)`, at most `max`, made longer
/// or shorter by up to `jitter` of itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// Before the second attempt; 1 s unless set.
    pub initial: Duration,
    /// Growth from attempt to attempt; at least 1.0; 2.0 unless set.
    pub factor: f64,
    /// No delay is longer; 10 min unless set.
    pub max: Duration,
    /// Spread around the delay, from 0.0 (none) to 1.0 (anything up to twice); 0.2 unless set.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial: Duration::from_secs(1),
            factor: 2.0,
            max: Duration::from_secs(600),
            jitter: 0.2,
        }
    }
}

impl Backoff {
    /// The delay after `failed` attempts have failed (1 after the first), never longer than `max`.
    ///
    /// `random` is a uniform random number of `0.0 <= random < 1.0` that picks the jitter.
    #[must_use]
    pub fn delay(&self, failed: u32, random: f64) -> Duration {
        let exponent = f64::from(failed.saturating_sub(1).min(1_000));
        let max = self.max.as_secs_f64();
        let bare = (self.initial.as_secs_f64() * self.factor.powf(exponent)).min(max);
        let spread = 1.0 + self.jitter * (2.0 * random - 1.0);
        Duration::try_from_secs_f64((bare * spread).clamp(0.0, max)).unwrap_or(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_the_maximum_with_jitter_in_bounds() {
        let backoff = Backoff::default();
        for (failed, random) in (1..=40).zip([0.0, 0.1, 0.5, 0.999].into_iter().cycle()) {
            let bare = (2_f64.powi(failed - 1)).min(600.0);
            let delay = backoff.delay(failed.unsigned_abs(), random).as_secs_f64();
            assert!(delay >= bare * 0.8 - 1e-6, "{failed}: {delay}");
            assert!(delay <= (bare * 1.2).min(600.0) + 1e-6, "{failed}: {delay}");
        }
        assert!(backoff.delay(u32::MAX, 0.999) <= backoff.max);
    }

    #[test]
    fn jitter_spreads_delays_around_the_exponential_one() {
        let backoff = Backoff { jitter: 0.5, ..Backoff::default() };
        let delays = [0.0, 0.25, 0.5, 0.75].map(|random| backoff.delay(3, random).as_millis());
        assert_eq!(delays, [2_000, 3_000, 4_000, 5_000]);
    }
}
