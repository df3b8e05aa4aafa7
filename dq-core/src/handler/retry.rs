//! How often and how soon a failed job is tried again.

use std::time::Duration;

use crate::entropy::Entropy;

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
    /// The delay after `failed` attempts have failed (1 after the first). Never longer than
    /// `max`, jitter included.
    #[must_use]
    pub fn delay(&self, failed: u32, entropy: &Entropy) -> Duration {
        let exponent = f64::from(failed.saturating_sub(1).min(1_000));
        let max = self.max.as_secs_f64();
        let bare = (self.initial.as_secs_f64() * self.factor.powf(exponent)).min(max);
        let spread = 1.0 + self.jitter * (2.0 * entropy.fraction() - 1.0);
        Duration::try_from_secs_f64((bare * spread).clamp(0.0, max)).unwrap_or(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_the_maximum_with_jitter_in_bounds() {
        let backoff = Backoff::default();
        let entropy = Entropy::seeded(7);
        for failed in 1..=40 {
            let bare = (2_f64.powi(failed - 1)).min(600.0);
            let delay = backoff.delay(failed.unsigned_abs(), &entropy).as_secs_f64();
            assert!(delay >= bare * 0.8 - 1e-6, "{failed}: {delay}");
            assert!(delay <= (bare * 1.2).min(600.0) + 1e-6, "{failed}: {delay}");
        }
        assert!(backoff.delay(u32::MAX, &entropy) <= backoff.max);
    }

    #[test]
    fn jitter_spreads_a_herd() {
        let entropy = Entropy::seeded(7);
        let delays: std::collections::BTreeSet<_> =
            (0..100).map(|_| Backoff::default().delay(3, &entropy)).collect();
        assert!(delays.len() > 90);
    }
}
