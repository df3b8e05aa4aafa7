//! What an import came to.

use std::collections::BTreeMap;

/// What an import came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportReport {
    /// Jobs that were moved from the source into the target.
    pub imported: u64,
    /// Jobs that an earlier import had begun with, and that this one finished.
    pub resumed: u64,
    /// Entries that stay in the source because they are no jobs that the target could keep.
    pub left: Reasons,
}

/// How many entries were left, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reasons {
    counts: BTreeMap<String, u64>,
}

/// Most different reasons that are kept; all others are counted together.
const MOST: usize = 20;

impl Reasons {
    /// How many entries were left in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Each reason with the number of entries that it holds for.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counts.iter().map(|(reason, count)| (reason.as_str(), *count))
    }

    pub(super) fn add(&mut self, reason: String) {
        self.count(reason, 1);
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (reason, count) in other.counts {
            self.count(reason, count);
        }
    }

    fn count(&mut self, reason: String, count: u64) {
        let known = self.counts.len() < MOST || self.counts.contains_key(&reason);
        let reason = if known { reason } else { "other reasons".to_owned() };
        *self.counts.entry(reason).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_reasons_become_one_and_none_is_lost() {
        let mut reasons = Reasons::default();
        for number in 0..100 {
            reasons.add(format!("reason {}", number % 50));
        }
        let mut sum = Reasons::default();
        sum.merge(reasons.clone());
        sum.merge(reasons);
        assert_eq!(sum.total(), 200);
        assert!((MOST..=MOST + 1).contains(&sum.iter().count()), "{sum:?}");
    }
}
