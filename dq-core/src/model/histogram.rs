//! A duration histogram with fixed buckets, the same in all versions.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Number of buckets between a duration and its double.
const PER_OCTAVE: u64 = 4;

/// Counts of durations in fixed buckets, so that several runners' histograms add up.
///
/// Durations are whole milliseconds: exact up to 7 ms, then in buckets no wider than a quarter of
/// their lower bound. The last bucket starts at 2^32 ms (49 days).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>", into = "Vec<u64>")]
pub struct Histogram {
    /// By bucket, without empty buckets at the end.
    counts: Vec<u64>,
}

/// A non-empty bucket of a [`Histogram`]. The last one has no end; its durations are its lower
/// bound.
pub(crate) struct Bucket {
    pub(crate) middle: Duration,
    longest: Duration,
    pub(crate) count: u64,
}

impl Histogram {
    /// Number of buckets.
    pub const BUCKETS: usize = 125;

    /// Counts a duration.
    pub fn record(&mut self, duration: Duration) {
        let bucket = bucket_of(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
        self.add(bucket, 1);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in other.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            self.add(bucket, *count);
        }
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the quantile (0.99 for the 99th percentile), rounded up to its bucket's longest
    /// duration; `None` if nothing was counted.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let rank = (part.clamp(0.0, 1.0) * self.count() as f64).ceil().max(1.0);
        let mut seen = 0_u64;
        let reaches_rank = |bucket: &Bucket| {
            seen = seen.saturating_add(bucket.count);
            seen as f64 >= rank
        };
        self.buckets().find(reaches_rank).map(|bucket| bucket.longest)
    }

    /// Returns the mean, from each bucket's middle; `None` if nothing was counted.
    pub fn mean(&self) -> Option<Duration> {
        let times = self.buckets().map(|bucket| bucket.middle.as_secs_f64() * bucket.count as f64);
        let (sum, count): (f64, _) = (times.sum(), self.count());
        (count > 0).then(|| Duration::from_secs_f64(sum / count as f64))
    }

    /// Iterates over non-empty buckets in ascending order.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = Bucket> {
        let counts = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        counts.map(|(bucket, count)| {
            let from = Duration::from_millis(lower_bound(bucket));
            let width = match bucket + 1 {
                Self::BUCKETS => 0,
                next => lower_bound(next) - lower_bound(bucket),
            };
            let longest = from + Duration::from_millis(width.saturating_sub(1));
            Bucket { middle: from + Duration::from_millis(width) / 2, longest, count: *count }
        })
    }

    fn add(&mut self, bucket: usize, count: u64) {
        if count == 0 {
            return;
        }
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] = self.counts[bucket].saturating_add(count);
    }
}

/// Returns a duration's bucket: the duration itself below [`PER_OCTAVE`], else computed from the
/// highest bit's position and the next two bits.
fn bucket_of(millis: u64) -> usize {
    let bucket = match millis.checked_ilog2() {
        None | Some(0 | 1) => millis,
        Some(octave) => {
            u64::from(octave - 1) * PER_OCTAVE + ((millis >> (octave - 2)) % PER_OCTAVE)
        }
    };
    usize::try_from(bucket).unwrap_or(usize::MAX).min(Histogram::BUCKETS - 1)
}

/// Returns a bucket's shortest duration in milliseconds.
fn lower_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PER_OCTAVE {
        return bucket;
    }
    (PER_OCTAVE + bucket % PER_OCTAVE) << (bucket / PER_OCTAVE - 1)
}

/// Serializes as bucket, count, bucket, count …, without empty buckets.
impl From<Histogram> for Vec<u64> {
    fn from(histogram: Histogram) -> Self {
        let counts = histogram.counts.into_iter().enumerate().filter(|(_, count)| *count > 0);
        counts.flat_map(|(bucket, count)| [bucket as u64, count]).collect()
    }
}

impl TryFrom<Vec<u64>> for Histogram {
    type Error = String;

    fn try_from(pairs: Vec<u64>) -> Result<Self, String> {
        let mut histogram = Self::default();
        for pair in pairs.chunks(2) {
            let &[bucket, count] = pair else {
                return Err("a histogram ends with a bucket without a count".to_owned());
            };
            match usize::try_from(bucket) {
                Ok(bucket) if bucket < Self::BUCKETS => histogram.add(bucket, count),
                _ => return Err(format!("a histogram has no bucket {bucket}")),
            }
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_adjacent_and_at_most_a_quarter_wide() {
        for bucket in 0..Histogram::BUCKETS - 1 {
            let (from, to) = (lower_bound(bucket), lower_bound(bucket + 1));
            assert_eq!((bucket_of(from), bucket_of(to - 1)), (bucket, bucket));
            assert!(to - from <= (from / 4).max(1), "{from}..{to}");
        }
        assert_eq!(lower_bound(Histogram::BUCKETS - 1), 1 << 32);
        assert_eq!(bucket_of(u64::MAX), Histogram::BUCKETS - 1);
    }

    #[test]
    fn quantiles_of_a_sum_are_those_of_all_durations() {
        let (mut low, mut high) = (Histogram::default(), Histogram::default());
        for millis in 1..=50 {
            low.record(Duration::from_millis(millis));
            high.record(Duration::from_millis(millis + 50));
        }
        low.merge(&high);
        assert_eq!(low.count(), 100);
        for (part, exact) in [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)] {
            let quantile = low.quantile(part).unwrap().as_millis();
            assert!((exact..=exact * 5 / 4).contains(&quantile), "{part}: {quantile}");
        }
        assert_eq!(Histogram::default().quantile(0.5), None);
        let mut longest = Histogram::default();
        longest.record(Duration::MAX);
        let last = Some(Duration::from_millis(1 << 32));
        assert_eq!((longest.quantile(0.5), longest.mean()), (last, last));
    }

    #[test]
    fn the_serialized_form_is_stable_and_small() {
        let mut histogram = Histogram::default();
        for millis in [0, 3, 3, 1_000] {
            histogram.record(Duration::from_millis(millis));
        }
        let json = serde_json::to_string(&histogram).unwrap();
        assert_eq!(json, "[0,1,3,2,35,1]");
        assert_eq!(serde_json::from_str::<Histogram>(&json).unwrap(), histogram);
        let full = Histogram { counts: vec![u64::from(u32::MAX); Histogram::BUCKETS] };
        assert!(serde_json::to_string(&full).unwrap().len() < 2_048);
        for wrong in ["[1]", "[125,1]", "[-1,1]", "{}"] {
            assert!(serde_json::from_str::<Histogram>(wrong).is_err(), "{wrong}");
        }
    }
}
