//! The result of an import.

use std::collections::BTreeMap;

/// How many entries an import moved, finished and rejected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportReport {
    /// Jobs moved from the source to the target.
    pub imported: u64,
    /// Jobs that an interrupted import left in the journal and this one finished.
    pub resumed: u64,
    /// Entries that stay in the source since the target does not accept them as jobs.
    pub rejected: ReasonCounts,
}

/// What an import would do now; a result of [`Dq::preview_import`](crate::Dq::preview_import).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportPreview {
    /// Jobs that would be moved from the source to the target.
    pub importable: u64,
    /// Jobs that an interrupted import has left in the journal and the next import would finish; at
    /// most 1,000 are counted.
    pub resumable: u64,
    /// Entries that would stay in the source since the target does not accept them as jobs.
    pub rejected: ReasonCounts,
}

/// How many entries an import rejected, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReasonCounts {
    counts: BTreeMap<String, u64>,
}

/// Maximum number of distinct reasons. Entries with other reasons are counted together.
const MAX_REASONS: usize = 20;

impl ReasonCounts {
    /// Number of rejected entries, for all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Each reason with its number of entries.
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
        // 50 distinct reasons, each twice.
        let mut reasons = ReasonCounts::default();
        for number in 0..100 {
            reasons.add(format!("reason {}", number % 50));
        }
        let mut sum = ReasonCounts::default();
        sum.merge(reasons.clone());
        sum.merge(reasons);
        assert_eq!(sum.total(), 200);
        assert!((MAX_REASONS..=MAX_REASONS + 1).contains(&sum.iter().count()), "{sum:?}");
    }
}
