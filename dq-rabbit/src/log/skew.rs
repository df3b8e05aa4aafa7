//! Clock skew between this process and the log's writers.
//!
//! An entry's time is compared with this clock when it is read. The time under way reduces the
//! difference, so the largest one is the best estimate.

use std::collections::HashMap;
use std::time::Duration;

use dq_core::Timestamp;

/// An estimate begins anew after this long, and is dropped after this long without an entry.
const WINDOW: Duration = Duration::from_secs(300);
/// A message's entries are delayed together; among several messages, one was hardly delayed.
const MIN_ENTRIES: u32 = 3;
const MAX_WRITERS: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct ClockSkews {
    writers: HashMap<u64, Estimate>,
}

#[derive(Debug)]
struct Estimate {
    /// In milliseconds, positive if the writer is ahead.
    skew: i64,
    entries: u32,
    since: Duration,
    last_seen: Duration,
}

impl Estimate {
    fn is_forgotten(&self, elapsed: Duration) -> bool {
        elapsed.saturating_sub(self.last_seen) >= WINDOW
    }
}

impl ClockSkews {
    /// The entry was read just after it was written, not in a replay.
    pub(super) fn observe(
        &mut self,
        producer_id: u64,
        at: Timestamp,
        now: Timestamp,
        elapsed: Duration,
    ) {
        let skew = at.as_millis().saturating_sub(now.as_millis());
        let is_old = |estimate: &Estimate| elapsed.saturating_sub(estimate.since) >= WINDOW;
        if let Some(estimate) = self.writers.get_mut(&producer_id).filter(|known| !is_old(known)) {
            estimate.skew = estimate.skew.max(skew);
            estimate.entries = estimate.entries.saturating_add(1);
            estimate.last_seen = elapsed;
            return;
        }
        if self.writers.len() >= MAX_WRITERS {
            self.writers.retain(|_, estimate| !estimate.is_forgotten(elapsed));
        }
        if self.writers.len() < MAX_WRITERS || self.writers.contains_key(&producer_id) {
            let estimate = Estimate { skew, entries: 1, since: elapsed, last_seen: elapsed };
            self.writers.insert(producer_id, estimate);
        }
    }

    /// In milliseconds, positive if the writer is ahead.
    pub(crate) fn largest(&self, elapsed: Duration) -> Option<i64> {
        let reliable = |estimate: &&Estimate| {
            estimate.entries >= MIN_ENTRIES && !estimate.is_forgotten(elapsed)
        };
        let reliable = self.writers.values().filter(reliable);
        reliable.map(|estimate| estimate.skew).max_by_key(|skew| skew.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_that_was_delayed_least_tells_the_skew() {
        let mut skews = ClockSkews::default();
        let mut observe = |producer_id, at, now, elapsed| {
            let [at, now] = [at, now].map(Timestamp::from_millis);
            let elapsed = Duration::from_secs(elapsed);
            skews.observe(producer_id, at, now, elapsed);
            skews.largest(elapsed)
        };
        // The first producer is exact; its entries take 5, 9000 and 40 ms.
        assert_eq!(observe(1, 0, 5, 0), None);
        assert_eq!(observe(1, 0, 9_000, 0), None);
        assert_eq!(observe(1, 9_000, 9_040, 0), Some(-5));
        // The second is a minute behind.
        for delay in [700, 20, 80] {
            observe(2, 0, 60_000 + delay, 0);
        }
        assert_eq!(observe(2, 0, 61_000, 0), Some(-60_020));
        // The third is two minutes ahead.
        for delay in [700, 20, 80] {
            observe(3, 120_000, delay, 0);
        }
        assert_eq!(observe(3, 120_000, 0, 0), Some(120_000));
        // Estimates begin anew, and an ended writer's is dropped.
        observe(2, 0, 60_050, 299);
        assert_eq!(observe(3, 0, 0, 300), Some(-60_020));
        assert_eq!(skews.largest(Duration::from_secs(598)), Some(-60_020));
        assert_eq!(skews.largest(Duration::from_secs(599)), None);
    }
}
