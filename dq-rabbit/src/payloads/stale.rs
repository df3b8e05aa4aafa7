//! Drops payloads from the buffer that no claim needs any more.

use std::sync::Weak;
use std::time::Duration;

use dq_core::{JobId, Timestamp, Want};

use crate::engine::Engine;
use crate::log::Replica;
use crate::payloads::buffer::MAX_OVERDUE;

const PRUNE_INTERVAL: Duration = Duration::from_secs(60);

pub(crate) async fn prune(engine: Weak<Engine>) {
    loop {
        let Some(pause) = engine.upgrade().map(|it| it.log.clock().sleep(PRUNE_INTERVAL)) else {
            return;
        };
        pause.await;
        if let Some(engine) = engine.upgrade() {
            engine.prune_payloads();
        }
    }
}

impl Engine {
    fn prune_payloads(&self) {
        let now = self.log.now();
        let mut due = self.payloads.all_due(now);
        let overdue = due.extract_if(.., |(due, _)| *due + MAX_OVERDUE <= now);
        self.payloads.discard(overdue.map(|(_, id)| id));
        self.drop_stale(&due);
        self.log.peek(|replica| {
            self.payloads.retain_leased(|id| replica.machine().is_leased(id));
        });
    }

    /// Lists the due jobs in the buffer that still wait. Stale ones would take their place in a
    /// claim.
    pub(crate) fn due_payloads(&self, wants: &[Want], until: Timestamp) -> Vec<JobId> {
        loop {
            let due = self.payloads.due(wants, until);
            if !self.drop_stale(&due) {
                let is_parked = |id| self.log.peek(|replica| replica.machine().is_parked(id));
                return due.into_iter().map(|(_, id)| id).filter(|id| !is_parked(*id)).collect();
            }
        }
    }

    /// Returns whether any of these jobs was stale.
    fn drop_stale(&self, buffered: &[(Timestamp, JobId)]) -> bool {
        let stale = self.log.peek(|replica| stale(replica, buffered));
        let has_stale = !stale.is_empty();
        self.payloads.discard(stale);
        has_stale
    }
}

/// Lists the buffered jobs that do not wait any more, or that wait for another due time.
fn stale(replica: &mut Replica, buffered: &[(Timestamp, JobId)]) -> Vec<JobId> {
    if !replica.is_ready() {
        return Vec::new();
    }
    let machine = replica.machine();
    let waits_for =
        |id, due| machine.is_waiting(id) && machine.peek(id).is_some_and(|job| job.due == due);
    let stale = buffered.iter().filter(|(due, id)| !waits_for(*id, *due));
    stale.map(|(_, id)| *id).collect()
}

#[cfg(test)]
mod tests {
    use dq_core::{Due, JobRef, NewJob, QueueName, Reschedule};

    use super::*;
    use crate::log::wire::{Command, Entry};

    #[test]
    fn a_buffered_job_is_stale_if_it_has_ended_or_has_another_due_time() {
        let mut replica = Replica::starting_at(0);
        let queue = QueueName::new("q").unwrap();
        let [waits, moved, ended] = [1, 2, 3].map(|number| JobId::from_bytes([number; 16]));
        let [due, later] = [1_000, 2_000].map(Timestamp::from_millis);
        let new = |id| NewJob::new(id, queue.clone(), due, "".into()).into();
        let by_id = |id| JobRef::new(queue.clone(), id);
        let reschedule = Reschedule { job: by_id(moved), due: Due::At(later) };
        let commands = [
            Command::Schedule([waits, moved, ended].map(new).into()),
            Command::Reschedule(vec![(&reschedule).into()]),
            Command::Cancel(vec![(&by_id(ended)).into()]),
        ];
        for (sequence, command) in (1..).zip(commands) {
            let entry = Entry { producer_id: 1, sequence, at: Timestamp::EPOCH, command };
            replica.apply(sequence, 0, entry);
        }

        let buffered = [(due, waits), (due, moved), (later, moved), (due, ended)];
        assert_eq!(stale(&mut replica, &buffered), [moved, ended]);
        let mut unread = Replica::default();
        assert!(stale(&mut unread, &buffered).is_empty(), "it does not know yet");
    }
}
