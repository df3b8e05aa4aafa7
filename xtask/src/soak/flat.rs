//! Decides whether a series grows.

/// A quantity over time.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    /// Insignificant growth, such as 300 late jobs on a busy machine or one more connection.
    pub(super) slack: f64,
    pub(super) samples: Vec<f64>,
}

const WARM_UP: f64 = 0.2;
/// The second half may exceed the first by this factor, plus the slack.
const FACTOR: f64 = 1.2;
const MIN_SAMPLES: usize = 3;

/// The 0.9-quantile of each half after warm-up. A high quantile compares the peaks of a sawtooth:
/// log segments, for example, take the most space just before they are cleared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Halves {
    pub(super) first: f64,
    pub(super) second: f64,
}

impl Series {
    /// Appends new samples to the series with the same name.
    pub(super) fn add(all: &mut Vec<Self>, new: Self) {
        match all.iter_mut().find(|series| series.name == new.name) {
            Some(series) => series.samples.extend(new.samples),
            None => all.push(new),
        }
    }

    pub(super) fn halves(&self) -> Option<Halves> {
        let begin = (self.samples.len() as f64 * WARM_UP) as usize;
        let warm = &self.samples[begin..];
        let (first, second) = warm.split_at(warm.len() / 2);
        let enough = first.len() >= MIN_SAMPLES && second.len() >= MIN_SAMPLES;
        enough.then(|| Halves { first: high(first), second: high(second) })
    }

    /// Whether the second half exceeds the first by no more than the bounds. False without enough
    /// samples.
    pub(super) fn is_flat(&self) -> bool {
        self.halves().is_some_and(|halves| halves.second <= halves.first * FACTOR + self.slack)
    }
}

fn high(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len() * 9).div_ceil(10).max(1) - 1;
    sorted[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_flat(samples: impl IntoIterator<Item = f64>) -> bool {
        let samples = samples.into_iter().collect();
        Series { name: "x", unit: "", slack: 5.0, samples }.is_flat()
    }

    #[test]
    fn growth_is_found_and_noise_is_not_growth() {
        let numbers = |count: u32| (0..count).map(f64::from);
        assert!(is_flat(numbers(100).map(|_| 50.0)), "constant");
        assert!(is_flat(numbers(100).map(|at| 50.0 + at % 7.0)), "noise");
        assert!(is_flat(numbers(100).map(|at| 30.0 + at % 25.0)), "cleared now and then");
        assert!(is_flat(numbers(100).map(|at| at.min(20.0))), "filled in the warm-up");
        assert!(is_flat(numbers(100).map(|at| if at == 70.0 { 1e9 } else { 50.0 })), "one outlier");
        assert!(is_flat(numbers(100).map(|at| 1_000.0 - at)), "shrinks");
        assert!(!is_flat(numbers(100)), "grows from nothing");
        assert!(!is_flat(numbers(100).map(|at| 50.0 + at)), "grows");
        assert!(!is_flat(numbers(100).map(|at| if at > 65.0 { 70.0 } else { 50.0 })), "a step");
        assert!(!is_flat([]) && !is_flat([1.0; 5]), "too few samples prove nothing");
    }
}
