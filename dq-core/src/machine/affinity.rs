//! Claims by claimers that prefer certain jobs, such as those whose payload they already have.

use std::time::Duration;

use super::index::TimeEntry;
use super::table::JobTable;
use crate::model::{Job, Timestamp};

/// Maximum number of jobs reserved for other claimers that a claim skips in search of its own. All builds
/// that share a log of calls must have the same number: their replicas would differ otherwise.
const MAX_SKIPPED: usize = 4_096;

/// Which jobs a claimer prefers, and what that means for the order of claims.
///
/// A due job is first reserved for the claimers that prefer it, and available to all after
/// `reserved_for`. Everything must be a function of the state and of the claim itself, so that each
/// replica that applies the claim selects the same jobs.
#[derive(Debug)]
pub struct Affinity<P> {
    /// Whether the claimer prefers a job.
    pub prefers: P,
    /// How long before its due time a claimer can lease a job that it prefers. It must then wait
    /// until the job is due.
    pub claim_ahead: Duration,
    /// How long after its due time a job is reserved for the claimers that prefer it.
    pub reserved_for: Duration,
}

impl<P: Fn(&Job) -> bool> Affinity<P> {
    /// Selects the oldest jobs of a queue that the claimer can lease, at most `max`.
    ///
    /// Also returns the time, in Unix milliseconds, at which the next job is due or its reservation
    /// for others ends; `None` if no other job waits. A preferred job can be leased `claim_ahead`
    /// before that.
    ///
    /// Jobs that are not due yet are selected only if the claimer can lease none that is due, and
    /// only those with the earliest due time, so that no job has to wait for another of its queue.
    pub(super) fn select(
        &self,
        table: &mut JobTable,
        queue: usize,
        max: usize,
        now: Timestamp,
    ) -> (Vec<TimeEntry>, Option<i64>) {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let now = now.as_millis();
        // Preferred jobs that are due by then can be leased now.
        let soon = now.saturating_add(millis(self.claim_ahead));
        let (records, waiting) = (&table.records, &mut table.queues[queue].waiting);
        let mut selected: Vec<TimeEntry> = Vec::new();
        // The latest due time to select; narrowed by the first job that is selected.
        let mut last_at = soon;
        let mut next: Option<i64> = None;
        // After the smallest possible key: from the first job.
        for (visited, entry) in waiting.after(i64::MIN, 0).enumerate() {
            let is_preferred = (self.prefers)(&records[entry.slot].job);
            // The claimer may come to prefer a job before it is due, so a future job counts as
            // available at its due time.
            let available_at = if is_preferred || entry.at > now {
                entry.at
            } else {
                entry.at.saturating_add(millis(self.reserved_for))
            };
            let is_available = (is_preferred && entry.at <= last_at) || available_at <= now;
            if is_available && selected.len() < max {
                if selected.is_empty() {
                    last_at = entry.at.max(now);
                }
                selected.push(entry);
                continue;
            }
            next = Some(next.map_or(available_at, |next| next.min(available_at)));
            // Later jobs may be available too, but the search is bounded.
            if is_available || entry.at > soon || visited >= max.saturating_add(MAX_SKIPPED) {
                break;
            }
        }
        (selected, next)
    }
}
