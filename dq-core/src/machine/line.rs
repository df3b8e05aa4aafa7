//! The claimers that wait for room in a queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::model::Timestamp;

/// A claimer that has not been seen for this long has ended: the longest sweep interval is a
/// minute.
const MAX_AGE: Duration = Duration::from_secs(65);

/// Claimers that found due jobs and no room, longest first, and when each was last seen. Room wakes
/// only the first one. If that has ended, or no slot, the next sweep of another finds the room.
#[derive(Debug, Default)]
pub(super) struct Line(VecDeque<(Arc<str>, Timestamp)>);

impl Line {
    /// Returns a claimer's position. If it is not in the line, it joins if `may_join`.
    pub(super) fn join_or_renew(
        &mut self,
        claimer: &Arc<str>,
        may_join: bool,
        now: Timestamp,
    ) -> Option<usize> {
        self.0.retain(|(_, seen)| now.since(*seen) < MAX_AGE);
        if let Some(position) = self.0.iter().position(|(name, _)| name == claimer) {
            self.0[position].1 = now;
            return Some(position);
        }
        may_join.then(|| {
            self.0.push_back((Arc::clone(claimer), now));
            self.0.len() - 1
        })
    }

    /// Takes out a claimer that has got jobs. With `missed_turns`, those before it leave too: they
    /// did not come at their turns, and may have ended.
    pub(super) fn leave(&mut self, claimer: &Arc<str>, missed_turns: bool) {
        if let Some(position) = self.0.iter().position(|(name, _)| name == claimer) {
            let first = if missed_turns { 0 } else { position };
            self.0.drain(first..=position);
        }
    }

    pub(super) fn take_first(&mut self) -> Option<Arc<str>> {
        self.0.pop_front().map(|(name, _)| name)
    }
}
