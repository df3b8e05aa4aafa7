//! Randomness, injected: job ids and the jitter of retries.

use std::fmt;
use std::sync::{Mutex, MutexGuard};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::model::{JobId, Timestamp};
use crate::sync::lock;

/// A source of random numbers: from the operating system, or from a seed in tests.
///
/// Not for secrets.
pub struct Entropy {
    state: Mutex<State>,
}

struct State {
    rng: SmallRng,
    last_millis: u64,
    counter: u16,
}

/// Ids of one millisecond before the next millisecond is borrowed: the 12 bits after the version.
const IDS_PER_MILLI: u16 = 1 << 12;

impl Entropy {
    /// Seeded by the operating system.
    #[must_use]
    pub fn from_os() -> Self {
        Self::new(SmallRng::from_os_rng())
    }

    /// Gives the same numbers for the same seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self::new(SmallRng::seed_from_u64(seed))
    }

    fn new(rng: SmallRng) -> Self {
        Self { state: Mutex::new(State { rng, last_millis: 0, counter: 0 }) }
    }

    /// A number of `0.0 <= x < 1.0`.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        self.lock().rng.random()
    }

    /// 128 random bits.
    #[must_use]
    pub fn bits(&self) -> u128 {
        self.lock().rng.random()
    }

    /// A new job id (UUID version 7), larger than every earlier one of this source.
    #[must_use]
    pub fn job_id(&self, now: Timestamp) -> JobId {
        let mut state = self.lock();
        let millis = now.as_millis().max(0).unsigned_abs();
        if millis > state.last_millis {
            state.last_millis = millis;
            state.counter = 0;
        } else {
            state.counter += 1;
            if state.counter == IDS_PER_MILLI {
                state.last_millis += 1;
                state.counter = 0;
            }
        }
        // RFC 9562: 48 bits of milliseconds, version 7, a 12-bit counter, variant 2, 62 random.
        let random: u64 = state.rng.random();
        let high = (state.last_millis << 16) | 0x7000 | u64::from(state.counter);
        let low = (random >> 2) | (1 << 63);
        JobId::from_bytes(((u128::from(high) << 64) | u128::from(low)).to_be_bytes())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entropy").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_grow_even_when_the_clock_stands_still_or_runs_back() {
        let entropy = Entropy::seeded(1);
        let mut last = entropy.job_id(Timestamp::from_millis(1_000));
        for step in 0..10_000_i64 {
            let id = entropy.job_id(Timestamp::from_millis(1_000 - step % 7));
            assert!(id > last);
            last = id;
        }
        assert_eq!(last.to_bytes()[6] >> 4, 7, "version");
        assert_eq!(last.to_bytes()[8] >> 6, 2, "variant");
    }
}
