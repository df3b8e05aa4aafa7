//! Claims and settlements of queues with limits: who may start how much, and who is woken.

use std::sync::Arc;

use super::gate::Room;
use super::placement::Stored;
use super::queue::Limited;
use super::state_machine::{Machine, MachineHint};
use crate::model::Timestamp;

impl<R: Stored> Machine<R> {
    /// Counts started jobs in a queue with a gate. Returns when the claimer should claim again,
    /// except for the end of a lease, if the next waiting job is due at `next`. A claimer that
    /// wants more jobs and finds no room for a due one, in the queue or its group, joins the line.
    pub(super) fn pass_gate(
        &mut self,
        queue: usize,
        started: usize,
        next: Option<Timestamp>,
        (claimer, wants_more): (&Arc<str>, bool),
        now: Timestamp,
    ) -> Option<Timestamp> {
        let record = &mut self.table.queues[queue];
        let (running, has_parked) = (record.leased.len(), record.has_parked());
        let Limited { gate, line } = record.limited.get_or_insert_default().as_mut();
        if started > 0 {
            gate.start(started, now);
            line.leave(claimer, gate.flow().rate.is_some());
        }
        let is_due = has_parked || next.is_some_and(|next| next <= now);
        let may_join = wants_more && is_due;
        match gate.room(running, now) {
            Room::Jobs(_) => {
                // Without room in the group of a due job.
                line.join_or_renew(claimer, may_join && has_parked, now);
                self.call_next(queue, now);
                next
            }
            Room::Full => {
                line.join_or_renew(claimer, may_join, now);
                // A claim then joins the line, if the queue is still full.
                next.filter(|next| *next > now)
            }
            Room::Until(opens_at) => {
                // Outside the line, a claimer has no due job or no slot: it looks when the gate
                // opens.
                let position = line.join_or_renew(claimer, may_join, now).unwrap_or_default();
                next.map(|next| next.max(gate.turn(position, opens_at)))
            }
        }
    }

    /// If a lease has ended in a full queue, or in a group with parked jobs, wakes the claimer that
    /// has waited longest, or all.
    pub(super) fn offer_room(&mut self, queue: usize, group_had_line: bool, now: Timestamp) {
        let record = &mut self.table.queues[queue];
        let running = record.leased.len();
        let Some(Limited { gate, line }) = record.limited.as_deref_mut() else { return };
        let Some(first) = record.waiting.first() else { return };
        let opens_at = match (gate.room(running + 1, now), gate.room(running, now)) {
            (Room::Full, Room::Jobs(_)) => now,
            (Room::Full, Room::Until(opens_at)) => opens_at,
            (_, Room::Jobs(_)) if group_had_line => now,
            (_, Room::Until(opens_at)) if group_had_line => opens_at,
            _ => return,
        };
        let due = Timestamp::from_millis(first.at).max(opens_at);
        let (queue, worker) = (record.name.clone(), line.take_first());
        self.hints.push(MachineHint { queue, due, worker });
    }

    /// If the queue has room and a job is due, wakes the claimer that has waited longest.
    fn call_next(&mut self, queue: usize, now: Timestamp) {
        let record = &mut self.table.queues[queue];
        let is_due = record.waiting.first().is_some_and(|first| first.at <= now.as_millis());
        if !is_due || !matches!(record.room(now), Room::Jobs(_)) {
            return;
        }
        let worker = record.limited.as_mut().and_then(|limited| limited.line.take_first());
        if worker.is_some() {
            let queue = record.name.clone();
            self.hints.push(MachineHint { queue, due: now, worker });
        }
    }
}
