//! Exponential backoff between attempts.

use std::time::Duration;

/// Exponential backoff with jitter.
///
/// The delay after `failed` attempts is `initial * factor^(failed - 1)`, lengthened or shortened by
/// a random share of up to `jitter`, at most `max`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// Delay before the second attempt; 1 s by default.
    pub initial: Duration,
    /// Growth per attempt, at least 1.0; 2.0 by default.
    pub factor: f64,
    /// Maximum delay; 10 min by default.
    pub max: Duration,
    /// Random spread around the delay, from 0.0 (none) to 1.0 (zero to twice the delay); 0.2 by
    /// default.
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
    /// Returns the delay after `failed` failed attempts (1 after the first).
    ///
    /// `random` selects the jitter: a uniform random number with `0.0 <= random < 1.0`.
    pub fn delay(&self, failed: u32, random: f64) -> Duration {
        if self.initial.is_zero() {
            // The growth may overflow to infinity, and zero times infinity is NaN.
            return Duration::ZERO;
        }
        let growth = self.factor.powf(f64::from(failed.saturating_sub(1)));
        let max = self.max.as_secs_f64();
        let nominal = (self.initial.as_secs_f64() * growth).min(max);
        let spread = 1.0 + self.jitter * (2.0 * random - 1.0);
        Duration::try_from_secs_f64((nominal * spread).clamp(0.0, max)).unwrap_or(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_to_the_maximum_and_jitter_spreads_it() {
        let backoff = Backoff { jitter: 0.5, ..Backoff::default() };
        for (failed, random, millis) in [
            (1, 0.5, 1_000),
            (3, 0.0, 2_000),
            (3, 0.25, 3_000),
            (3, 0.5, 4_000),
            (3, 0.75, 5_000),
            (10, 0.5, 512_000),
            (11, 0.0, 300_000),
            (u32::MAX, 0.999, 600_000),
        ] {
            assert_eq!(backoff.delay(failed, random), Duration::from_millis(millis), "{failed}");
        }
        let none = Backoff { initial: Duration::ZERO, ..backoff };
        assert_eq!(none.delay(u32::MAX, 0.999), Duration::ZERO);
    }
}
