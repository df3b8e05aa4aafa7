//! The replica: the state of all jobs that results from applying the entries of the log. Equal in
//! all processes that have read up to the same entry.

use std::collections::HashSet;
use std::time::Duration;

use dq_core::machine::{Affinity, JobSnapshot, Machine};
use dq_core::{
    DeadKind, DeadReason, Job, JobId, JobRef, Renewal, Reschedule, Settlement, Timestamp, Want,
};

use super::command::CommandReply;
use super::position::LogPosition;
use super::producers::{Producers, SequenceCheck};
use super::snapshot::{SnapshotCollector, to_wire_totals};
use super::wire::{self, Command, Entry, SnapshotJob, SnapshotPart};

/// How long before its due time a job can be claimed: about the duration of a call. The claimer
/// waits for the rest of it.
pub(crate) const CLAIM_AHEAD: Duration = Duration::from_millis(2);

/// How long after its due time a job is reserved for processes that have prefetched its message.
const RESERVED_FOR: Duration = Duration::from_millis(250);

/// A job stored this recently counts as prefetched by all processes: its payload is still in their
/// caches.
const RECENTLY_STORED: Duration = Duration::from_secs(2);

/// What applying an entry did.
#[derive(Debug)]
pub(crate) enum Applied {
    /// The entry took effect, with this reply.
    Reply(CommandReply),
    /// The entry took effect earlier in the log.
    Duplicate,
    /// An earlier entry of the same producer is missing, so this one has no effect. The producer
    /// has to append the missing entry and all of its later ones again.
    Gap {
        /// The last sequence number that took effect; 0 if the producer is unknown.
        last: u64,
    },
    /// The entry is kept until the replica is restored from a snapshot.
    Deferred,
}

/// The state of all jobs, and what is needed to apply the next entry of the log to it.
#[derive(Debug)]
pub(crate) struct Replica {
    machine: Machine,
    /// Tells this log from others of the same name. Derived from its first entry; 0 if unknown.
    log_id: u64,
    producers: Producers,
    /// Collects entries while the replica is being restored: reading began in the middle of the
    /// log, and no snapshot is complete yet. `None` afterwards.
    collector: Option<SnapshotCollector>,
}

impl Replica {
    /// A replica that has not read anything yet.
    pub(crate) fn unread() -> Self {
        Self {
            machine: Machine::default(),
            log_id: 0,
            producers: Producers::default(),
            collector: Some(SnapshotCollector::default()),
        }
    }

    /// A replica whose first entry will be at offset `first`. It has to be restored from a snapshot
    /// unless that is 0.
    pub(crate) fn starting_at(first: u64) -> Self {
        let mut replica = Self::unread();
        if first == 0 {
            replica.collector = None;
        }
        replica
    }

    /// Whether the state is known: all of the log was read, or a snapshot has been restored.
    pub(crate) fn is_ready(&self) -> bool {
        self.collector.is_none()
    }

    /// Applies the entry with this index in the message at this offset.
    pub(crate) fn apply(&mut self, offset: u64, index: u32, entry: Entry) -> Applied {
        if let Some(collector) = &mut self.collector {
            collector.add(offset, index, entry);
            return Applied::Deferred;
        }
        self.producers.expire(offset);
        if (offset, index) == (0, 0) {
            // Set even if the entry has no effect: a producer that goes on in a new log begins in
            // the middle of its sequence. And the producer id alone would not do: it may have begun
            // the former log too.
            self.log_id = entry.producer_id.wrapping_add(entry.sequence).max(1);
        }
        match self.producers.record(entry.producer_id, entry.sequence, offset) {
            SequenceCheck::Next => Applied::Reply(self.execute(offset, index, entry)),
            SequenceCheck::Duplicate => Applied::Duplicate,
            SequenceCheck::Gap { last } => Applied::Gap { last },
        }
    }

    fn execute(&mut self, offset: u64, index: u32, entry: Entry) -> CommandReply {
        let (machine, at) = (&mut self.machine, entry.at);
        let position = |job: usize| LogPosition { offset, entry: index, job: job as u32 };
        match entry.command {
            Command::Barrier => {
                // A read ends lapsed leases as of its time. All replicas have to do that, not only
                // the reader's.
                machine.expire_leases(at);
                CommandReply::Done
            }
            Command::Schedule(jobs) => {
                let schedule = |(job, new): (usize, &wire::NewJob)| {
                    machine.schedule(new.with_payload(position(job).to_bytes()), at)
                };
                CommandReply::Scheduled(jobs.iter().enumerate().map(schedule).collect())
            }
            Command::Cancel(jobs) => {
                let cancel = |job| machine.cancel(&JobRef::from(job), at);
                CommandReply::Cancelled(jobs.iter().map(cancel).collect())
            }
            Command::Reschedule(moves) => {
                let reschedule = |job| machine.reschedule(&Reschedule::from(job), at);
                CommandReply::Rescheduled(moves.iter().map(reschedule).collect())
            }
            Command::Claim(claim) => {
                let prefetched: HashSet<JobId> = claim.prefetched.iter().copied().collect();
                let limit = usize::try_from(claim.limit).unwrap_or(usize::MAX);
                let affinity = affinity(at, |id| prefetched.contains(&id));
                CommandReply::Claimed(machine.claim_preferring(
                    &claim.wants(),
                    limit,
                    &affinity,
                    at,
                ))
            }
            Command::Settle(settlements) => {
                let settle = |settlement| machine.settle(&Settlement::from(settlement), at);
                CommandReply::Settled(settlements.iter().map(settle).collect())
            }
            Command::Renew(renewals) => {
                let renew = |renewal| machine.renew(&Renewal::from(renewal), at);
                CommandReply::Renewed(renewals.iter().map(renew).collect())
            }
            Command::Operate(queue, operation) => {
                CommandReply::Operated(machine.operate(&queue, &(&operation).into(), at))
            }
            Command::Park(parked) => {
                for (job, (new, reason)) in parked.iter().enumerate() {
                    let reason = DeadReason::new(DeadKind::Quarantined, reason.as_str());
                    machine.insert_dead(new.with_payload(position(job).to_bytes()), reason, at);
                }
                CommandReply::Done
            }
            Command::Snapshot(part) => {
                self.move_payloads(offset, index, &part);
                CommandReply::Done
            }
        }
    }

    /// Points the jobs in a snapshot part to the payloads in that part, since the broker will
    /// delete the earlier ones.
    fn move_payloads(&mut self, offset: u64, index: u32, part: &SnapshotPart) {
        let SnapshotPart::Jobs(begin, jobs) = part else { return };
        for (job_index, SnapshotJob { job, .. }) in jobs.iter().enumerate() {
            let position = LogPosition { offset, entry: index, job: job_index as u32 };
            let current = self.machine.peek(job.id).map(LogPosition::of);
            // A job stored after the beginning of the snapshot may reuse the id of one that has
            // ended.
            if current.is_some_and(|current| current.offset < *begin) {
                self.machine.set_payload(job.id, position.to_bytes());
            }
        }
    }

    /// The current state as a snapshot that began at offset `begin`: its header, and the jobs
    /// without payloads.
    pub(crate) fn snapshot(&self, begin: u64) -> (SnapshotPart, Vec<JobSnapshot>) {
        let state = self.machine.snapshot();
        let queue = |(name, paused, totals): (_, _, _)| (name, paused, to_wire_totals(&totals));
        let header = SnapshotPart::Header {
            begin,
            log_id: self.log_id,
            last_seq: state.last_seq,
            last_token: state.last_token,
            producers: self.producers.to_wire(),
            queues: state.queues.into_iter().map(queue).collect(),
        };
        (header, state.jobs)
    }

    /// Restores the state from a snapshot, once one is complete. Returns the entries since its
    /// beginning, which have to be applied next; none if no snapshot is complete.
    pub(crate) fn restore(&mut self) -> Vec<(u64, u32, Entry)> {
        let Some(snapshot) = self.collector.as_mut().and_then(SnapshotCollector::take_complete)
        else {
            return Vec::new();
        };
        self.machine = Machine::restore(snapshot.machine);
        self.log_id = snapshot.log_id;
        self.producers = snapshot.producers;
        self.collector = None;
        snapshot.later_entries
    }

    /// When a claim of a process that has prefetched these jobs could next return one; `None` if no
    /// job waits.
    pub(crate) fn next_due(
        &mut self,
        wants: &[Want],
        is_prefetched: impl Fn(JobId) -> bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        self.machine.next_due(wants, &affinity(now, is_prefetched), now)
    }

    /// Whether jobs are due, but a claim would return none of them, because all are reserved for
    /// processes that have prefetched their messages.
    pub(crate) fn all_reserved_for_others(
        &mut self,
        wants: &[Want],
        is_prefetched: impl Fn(JobId) -> bool,
        now: Timestamp,
    ) -> bool {
        self.machine.all_due_reserved(wants, &affinity(now, is_prefetched), now)
    }

    /// Distinguishes this log from others of the same name; 0 while unknown.
    pub(crate) fn log_id(&self) -> u64 {
        self.log_id
    }

    #[cfg(test)]
    pub(crate) fn producers(&self) -> &Producers {
        &self.producers
    }

    /// The state machine, which holds all jobs.
    pub(crate) fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }
}

/// The affinity of a claimer that has prefetched these jobs.
fn affinity(
    now: Timestamp,
    is_prefetched: impl Fn(JobId) -> bool,
) -> Affinity<impl Fn(&Job) -> bool> {
    let recent = now - RECENTLY_STORED;
    let prefers = move |job: &Job| job.created >= recent || is_prefetched(job.id);
    Affinity { prefers, claim_ahead: CLAIM_AHEAD, reserved_for: RESERVED_FOR }
}
