//! Random numbers for job ids, trace ids and retry jitter.

use std::fmt;
use std::sync::{Mutex, MutexGuard};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::model::{JobId, Timestamp};
use crate::sync::lock;

/// A random source, seeded by the operating system or, in tests, a constant.
///
/// Not cryptographically secure.
pub struct Entropy {
    generator: Mutex<Generator>,
}

struct Generator {
    rng: SmallRng,
    last_millis: u64,
    counter: u16,
}

/// The counter has 12 bits. When it overflows, ids use the next millisecond.
const IDS_PER_MILLI: u16 = 1 << 12;

impl Entropy {
    /// Creates a source seeded by the operating system.
    pub fn from_os() -> Self {
        Self::new(SmallRng::from_os_rng())
    }

    /// Creates a source with the same numbers for the same seed.
    pub fn seeded(seed: u64) -> Self {
        Self::new(SmallRng::seed_from_u64(seed))
    }

    fn new(rng: SmallRng) -> Self {
        Self { generator: Mutex::new(Generator { rng, last_millis: 0, counter: 0 }) }
    }

    /// Returns a random number with `0.0 <= x < 1.0`.
    pub fn fraction(&self) -> f64 {
        self.lock().rng.random()
    }

    /// Returns 128 random bits.
    pub fn bits(&self) -> u128 {
        self.lock().rng.random()
    }

    /// Returns a new UUID version 7, larger than all earlier ones even if `now` goes back.
    pub fn job_id(&self, now: Timestamp) -> JobId {
        let mut generator = self.lock();
        let millis = now.as_millis().max(0).unsigned_abs();
        if millis > generator.last_millis {
            generator.last_millis = millis;
            generator.counter = 0;
        } else {
            generator.counter += 1;
            if generator.counter == IDS_PER_MILLI {
                generator.last_millis += 1;
                generator.counter = 0;
            }
        }
        // RFC 9562: 48 bits of milliseconds, version 7, 12-bit counter, variant 2, 62 random bits.
        let random: u64 = generator.rng.random();
        let high = (generator.last_millis << 16) | 0x7000 | u64::from(generator.counter);
        let low = (random >> 2) | (1 << 63);
        JobId::from_bytes(((u128::from(high) << 64) | u128::from(low)).to_be_bytes())
    }

    fn lock(&self) -> MutexGuard<'_, Generator> {
        lock(&self.generator)
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
    fn ids_grow_even_if_the_clock_stands_still_or_goes_back() {
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
