//! Claims with preferences, for example for jobs whose payload is at hand.

use std::time::Duration;

use super::index::{MIN_KEY, TimeEntry};
use super::placement::Stored;
use super::table::JobTable;
use crate::model::{Job, Timestamp};

/// Maximum jobs that one claim skips because they are reserved for others. Builds that share a log
/// must agree on it, or their replicas differ.
const MAX_SKIPPED: usize = 4_096;

/// A claimer's preferences.
///
/// A due job is first reserved for claimers that prefer it, and open to all after `reserved_for`.
#[derive(Debug)]
pub struct Affinity<P> {
    /// Returns whether the claimer prefers a job. Each replica must get the same result.
    pub prefers: P,
    /// How early a claimer can lease a job it prefers. It then waits until the job is due.
    pub claim_ahead: Duration,
    /// How long after its due time a job stays reserved for claimers that prefer it.
    pub reserved_for: Duration,
}

impl<P: Fn(&Job) -> bool> Affinity<P> {
    /// Selects a queue's oldest jobs that the claimer can lease, at most `max`.
    ///
    /// Also returns when the next job is due or its reservation ends, in Unix milliseconds; `None`
    /// if no other job waits. A preferred job can be leased `claim_ahead` before that.
    ///
    /// Selects future jobs only if no due job can be leased, and then only jobs with the earliest
    /// due time, so that none waits for another job in its queue.
    pub(super) fn select<R: Stored>(
        &self,
        table: &mut JobTable<R>,
        queue: usize,
        max: usize,
        now: Timestamp,
    ) -> (Vec<TimeEntry>, Option<i64>) {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let now = now.as_millis();
        let soon = now.saturating_add(millis(self.claim_ahead));
        let (records, waiting) = (&table.records, &mut table.queues[queue].waiting);
        let mut selected: Vec<TimeEntry> = Vec::new();
        // The latest due time of a job to select.
        let mut last_due = soon;
        let mut next: Option<i64> = None;
        for (visited, entry) in waiting.after(MIN_KEY).enumerate() {
            let is_preferred = (self.prefers)(&records[entry.slot].job);
            // A claimer may come to prefer a future job, so it counts as available at its due time.
            let available_at = if is_preferred || entry.at > now {
                entry.at
            } else {
                entry.at.saturating_add(millis(self.reserved_for))
            };
            let is_available = (is_preferred && entry.at <= last_due) || available_at <= now;
            if is_available && selected.len() < max {
                if selected.is_empty() {
                    last_due = entry.at.max(now);
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
