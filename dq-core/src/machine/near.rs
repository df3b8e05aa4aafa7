//! Who shall take which due job, where some are nearer to it than others.

use std::time::Duration;

use super::index::Entry;
use super::store::Store;
use crate::model::{Job, Timestamp};

/// How many jobs that are left to others are passed over at once.
const PASSED_OVER: usize = 4_096;

/// What a claimer says of the jobs that it could take. It must follow from the state and from what is
/// said with the claim, so that every process that repeats the claim comes to the same.
#[derive(Debug)]
pub struct Nearness<N> {
    /// Whether the claimer is near to a job: has it at hand, say.
    pub near: N,
    /// How long before its due time a job can be had by who is near to it, and waits until then.
    pub ahead: Duration,
    /// How long after its due time a job is left to those who are nearer.
    pub patience: Duration,
}

impl<N: Fn(&Job) -> bool> Nearness<N> {
    /// The oldest `room` of the due jobs of a queue that can be had, and when more could be.
    pub(super) fn choose(
        &self,
        store: &mut Store,
        number: usize,
        room: usize,
        now: Timestamp,
    ) -> (Vec<Entry>, Option<i64>) {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let (ahead, patience) = (millis(self.ahead), millis(self.patience));
        let now = now.as_millis();
        let (records, waiting) = (&store.records, &mut store.queues[number].waiting);
        let mut chosen = Vec::new();
        let mut next: Option<i64> = None;
        for (looked_at, entry) in waiting.after(i64::MIN, 0).enumerate() {
            let from = if (self.near)(&records[entry.slot].job) {
                entry.at.saturating_sub(ahead)
            } else if entry.at > now {
                // Whoever is near by then can have it in time.
                entry.at
            } else {
                entry.at.saturating_add(patience)
            };
            if from <= now && chosen.len() < room {
                chosen.push(entry);
                continue;
            }
            next = Some(next.map_or(from, |next| next.min(from)));
            // What follows is due later; it may be nearer, but there is an end to looking.
            let is_far = entry.at.saturating_sub(ahead) > now;
            if from <= now || is_far || looked_at >= room.saturating_add(PASSED_OVER) {
                break;
            }
        }
        (chosen, next)
    }
}
