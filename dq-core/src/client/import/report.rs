//! Import results.

use std::collections::BTreeMap;

/// The result of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportReport {
    /// Jobs moved from the source to the target.
    pub imported: u64,
    /// Jobs that this import finished after an interrupted one left them in the journal.
    pub resumed: u64,
    /// Source entries that the target does not accept as jobs; they stay in the source.
    pub rejected: ReasonCounts,
}

/// A result of [`Dq::preview_import`](crate::Dq::preview_import).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportPreview {
    /// Jobs that an import would move to the target.
    pub importable: u64,
    /// Journal entries from interrupted imports, which the next import would finish. The count
    /// stops at 1,000.
    pub resumable: u64,
    /// Source entries that the target would not accept as jobs.
    pub rejected: ReasonCounts,
}

/// Rejected entries by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReasonCounts {
    counts: BTreeMap<String, u64>,
}

/// Further reasons are counted together.
const MAX_REASONS: usize = 20;

impl ReasonCounts {
    /// Returns the number of rejected entries.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Iterates over reasons and their entry counts.
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
        let is_listed = self.counts.len() < MAX_REASONS || self.counts.contains_key(&reason);
        let reason = if is_listed { reason } else { "other reasons".to_owned() };
        *self.counts.entry(reason).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_reasons_are_counted_together() {
        let mut reasons = ReasonCounts::default();
        (0..100).for_each(|number| reasons.add(format!("reason {}", number % 50)));
        let mut sum = reasons.clone();
        sum.merge(reasons);
        assert_eq!(sum.total(), 200);
        assert!((MAX_REASONS..=MAX_REASONS + 1).contains(&sum.iter().count()), "{sum:?}");
    }
}
