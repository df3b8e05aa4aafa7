//! Who shall take which due job, where some are nearer to it than others.

use std::time::Duration;

use super::index::Entry;
use super::store::Store;
use crate::model::{Job, Timestamp};

/// How far behind the oldest due job those that are nearer are looked for.
const FAR_ENOUGH: usize = 4_096;

/// What a claimer says of the jobs that it could take. It must follow from the state and from what is
/// said with the claim, so that every process that repeats the claim comes to the same.
#[derive(Debug)]
pub struct Nearness<N> {
    /// Whether the claimer is near to a job: has it at hand, say.
    pub near: N,
    /// How long after its due time a job is left to those who are nearer.
    pub patience: Duration,
}

impl<N: Fn(&Job) -> bool> Nearness<N> {
    /// At most `room` of the due jobs of a queue, and when more could be had.
    pub(super) fn choose(
        &self,
        store: &mut Store,
        number: usize,
        room: usize,
        now: Timestamp,
    ) -> (Vec<Entry>, Option<i64>) {
        let patience = i64::try_from(self.patience.as_millis()).unwrap_or(i64::MAX);
        let now = now.as_millis();
        let (records, waiting) = (&store.records, &mut store.queues[number].waiting);
        let mut near = Vec::new();
        let mut far = Vec::new();
        let mut next: Option<i64> = None;
        for (looked_at, entry) in waiting.after(i64::MIN, 0).enumerate() {
            if entry.at > now {
                next = Some(next.map_or(entry.at, |next| next.min(entry.at)));
                break;
            }
            let is_near = (self.near)(&records[entry.slot].job);
            let from = if is_near { entry.at } else { entry.at.saturating_add(patience) };
            if is_near && near.len() < room {
                near.push(entry);
            } else if !is_near && from <= now && far.len() < room {
                far.push(entry);
            } else {
                next = Some(next.map_or(from, |next| next.min(from)));
            }
            let more = next.is_some_and(|next| next <= now);
            if more && (near.len() >= room || looked_at >= room + FAR_ENOUGH) {
                break;
            }
        }
        let left = near.len() + far.len() > room;
        if let Some(first) = far.get(room.saturating_sub(near.len())).filter(|_| left) {
            let due = first.at.saturating_add(patience);
            next = Some(next.map_or(due, |next| next.min(due)));
        }
        far.truncate(room - near.len());
        near.append(&mut far);
        (near, next)
    }
}
