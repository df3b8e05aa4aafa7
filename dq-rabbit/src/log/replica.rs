//! The replica: the state of all jobs that results from applying the entries of the log. Equal in
//! all processes that have read up to the same entry.

use std::collections::HashSet;
use std::time::Duration;

use dq_core::machine::{Affinity, JobSnapshot, Machine};
use dq_core::{
    ClaimParams, Claimed, DeadKind, DeadReason, HistoryLimit, HistoryLimits, Job, JobId, JobRef,
    Renewal, Renewed, Reschedule, Settled, Timestamp, Want,
};

use super::capacity::{SIZES, Usage};
use super::command::CommandReply;
use super::leases::ObservedLeases;
use super::position::{LogPosition, PayloadRef};
use super::producers::{Producers, SequenceCheck};
use super::snapshot::{SnapshotCollector, list_parts, to_wire_totals};
use super::wire::{self, Command, Entry, SnapshotEntry, SnapshotHeader, SnapshotPart};
use crate::entries::MAX_ENTRY_ITEMS;
use crate::generation::Generation;

// The next three decide which jobs a claim entry leases, so they are part of the format of the log: all
// builds that share a log must have the same values, since their replicas would differ otherwise. Other
// values need a new kind of claim entry.

/// How long before its due time a job can be claimed: about the duration of a call. The claimer
/// waits for the rest of it.
pub(crate) const CLAIM_AHEAD: Duration = Duration::from_millis(2);

/// How long after its due time a job is reserved for processes that have prefetched its message.
const RESERVED_FOR: Duration = Duration::from_millis(250);

/// A job stored this recently counts as prefetched by all processes: its payload is usually still in
/// their caches. Longer than `MIN_MESSAGE_DELAY` in `engine.rs`: a job with a shorter delay has no message,
/// so otherwise nobody could claim it before [`RESERVED_FOR`] is over.
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
    /// What a snapshot may take, in bytes; `None` before the log says it.
    capacity: Option<u64>,
    leases: ObservedLeases,
    /// See [`is_closed`](Self::is_closed).
    is_closed: bool,
    /// The elapsed time of this process at which the entry that is being applied was seen.
    seen: Duration,
    /// Collects entries while the replica is being restored: reading began in the middle of the
    /// log, and no snapshot is complete yet. `None` afterwards.
    collector: Option<SnapshotCollector>,
}

impl Replica {
    /// A replica that has not read anything yet.
    pub(crate) fn unread() -> Self {
        let limits = HistoryLimits::all(HistoryLimit::OFF);
        let mut machine = Machine::new(limits).with_explicit_lease_ends();
        machine.measure(SIZES);
        Self {
            machine,
            log_id: 0,
            producers: Producers::default(),
            capacity: None,
            leases: ObservedLeases::default(),
            is_closed: false,
            seen: Duration::ZERO,
            collector: Some(SnapshotCollector::default()),
        }
    }

    /// A replica whose first entry will be at offset `first`. It has to be restored from a snapshot
    /// unless that is the beginning of a generation that begins empty.
    pub(crate) fn starting_at(first: u64) -> Self {
        let mut replica = Self::unread();
        let generation = Generation::of(first);
        if generation.begins_empty() && first == generation.offset(0) {
            replica.collector = None;
        }
        replica
    }

    /// Whether the state is known: reading began where a generation begins empty, or a snapshot has
    /// been restored.
    pub(crate) fn is_ready(&self) -> bool {
        self.collector.is_none()
    }

    /// Sets the elapsed time of this process at which the next entries were seen: when they were read,
    /// or when this process submitted them. The leases that they grant or renew are counted from then,
    /// which is never earlier than when their holders begin to count: so none lapses while its holder
    /// still relies on it.
    pub(crate) fn set_seen(&mut self, seen: Duration) {
        self.seen = seen;
    }

    /// Applies the entry with this index in the message at this offset.
    pub(crate) fn apply(&mut self, offset: u64, index: u32, entry: Entry) -> Applied {
        if let Some(collector) = &mut self.collector {
            collector.add(offset, index, entry);
            return Applied::Deferred;
        }
        if self.log_id == 0 {
            // The first entry of the log: messages before it may be foreign or damaged. Set even if
            // the entry has no effect: a producer that goes on in a new log begins in the middle of
            // its sequence. And the producer id alone would not do: it may have begun the former
            // log too.
            self.log_id = entry.producer_id.wrapping_add(entry.sequence).max(1);
        }
        match self.producers.record(entry.producer_id, entry.sequence) {
            SequenceCheck::Next => Applied::Reply(self.execute(offset, index, entry)),
            SequenceCheck::Duplicate => Applied::Duplicate,
            SequenceCheck::Gap { last } => Applied::Gap { last },
        }
    }

    fn execute(&mut self, offset: u64, index: u32, entry: Entry) -> CommandReply {
        let usage = self.usage();
        if !usage.has_room(&self.machine, entry.command.new_jobs()) {
            return CommandReply::Full;
        }
        let (machine, at) = (&mut self.machine, entry.at);
        let position = |job: usize| LogPosition { offset, entry: index, job: job as u32 };
        let stored = |job: usize, new: &wire::NewJob| {
            let payload = PayloadRef::new(position(job), &new.payload);
            new.with_payload(payload.to_bytes(&new.headers))
        };
        match entry.command {
            Command::Barrier => CommandReply::Done,
            Command::Schedule(jobs) => {
                let jobs = jobs.iter().enumerate();
                let schedule = |(job, new)| machine.schedule(stored(job, new), at);
                CommandReply::Scheduled(jobs.map(schedule).collect())
            }
            Command::Cancel(jobs) => {
                let cancel = |job| machine.cancel(&JobRef::from(job), at);
                CommandReply::Cancelled(jobs.iter().map(cancel).collect())
            }
            Command::Reschedule(moves) => {
                let reschedule = |job| machine.reschedule(&Reschedule::from(job), at);
                CommandReply::Rescheduled(moves.iter().map(reschedule).collect())
            }
            Command::Claim(claim) => CommandReply::Claimed(self.claim(&claim, at)),
            Command::Settle(settlements) => {
                let settle = |(index, settlement): (usize, &wire::Settlement)| {
                    let job = machine.peek(settlement.job());
                    // The headers of the job stay.
                    let payload = job.zip(settlement.payload()).map(|(job, payload)| {
                        PayloadRef::new(position(index), payload).to_bytes_of(job)
                    });
                    let settlement = settlement.with_payload(payload.unwrap_or_default());
                    machine.settle(&usage.shorten(settlement), at)
                };
                let settled: Vec<_> = settlements.iter().enumerate().map(settle).collect();
                for (settlement, settled) in settlements.iter().zip(&settled) {
                    if *settled == Settled::Accepted {
                        self.leases.end(settlement.job());
                    }
                }
                CommandReply::Settled(settled)
            }
            Command::Renew(renewals) => {
                let renew = |renewal| {
                    let renewal = Renewal::from(renewal);
                    let renewed = machine.renew(&renewal, at);
                    if let Renewed::Until(_) = renewed {
                        self.leases.renew(renewal.lease.job, renewal.lease_for, self.seen);
                    }
                    renewed
                };
                CommandReply::Renewed(renewals.iter().map(renew).collect())
            }
            Command::Operate(queue, operation) => {
                CommandReply::Operated(machine.operate(&queue, &operation.into(), at))
            }
            Command::Park(parked) => {
                for (job, (new, reason)) in parked.iter().enumerate() {
                    let reason = DeadReason::new(DeadKind::Quarantined, reason.as_str());
                    machine.insert_dead(stored(job, new), reason, at);
                }
                CommandReply::Done
            }
            Command::SetHistory(limits) => {
                let mut changed = machine.history_limits().clone();
                limits.apply_to(&mut changed);
                machine.set_history_limits(changed, at);
                CommandReply::Done
            }
            Command::SetCapacity(bytes) => {
                self.capacity = Some(bytes);
                CommandReply::Done
            }
            Command::Announce(announcement) => {
                machine.announce(announcement.into(), at);
                CommandReply::Done
            }
            Command::EndLeases(named) => {
                for lease in named {
                    if self.leases.stands(&lease) {
                        machine.end_lease(&(&lease).into());
                        self.leases.end(lease.job);
                    }
                }
                CommandReply::Done
            }
            Command::Close(generation) => {
                // A process may close a generation that another one has closed meanwhile.
                self.is_closed |= generation == Generation::of(offset).number();
                CommandReply::Done
            }
            Command::Snapshot(entry) => {
                if let SnapshotEntry::Part { begin, part: SnapshotPart::Jobs(jobs), .. } = entry {
                    self.move_payloads(offset, index, begin, &jobs);
                }
                CommandReply::Done
            }
            Command::Unknown { kind, .. } => {
                tracing::debug!(kind, "an entry of an unknown kind is skipped");
                CommandReply::Done
            }
        }
    }

    fn claim(&mut self, claim: &wire::Claim, at: Timestamp) -> Claimed {
        let prefetched: HashSet<JobId> = claim.prefetched.iter().copied().collect();
        let limit = usize::try_from(claim.limit).unwrap_or(usize::MAX);
        let wants = claim.wants();
        let params = ClaimParams::new(&wants, limit, &claim.worker);
        let affinity = affinity(at, |id| prefetched.contains(&id));
        let mut claimed = self.machine.claim_preferring(params, &affinity, at);
        for leased in &claimed.jobs {
            // Since now, even if the job is due a moment later: a lease must not lapse before the
            // end that its holder knows. The holder counts from before it called `claim`.
            let lease_for = leased.leased_until.since(at);
            self.leases.grant(leased.lease(), lease_for, self.seen);
        }
        let next_lapse = self.next_lapse(&wants, at, self.seen);
        claimed.next_due = claimed.next_due.into_iter().chain(next_lapse).min();
        claimed
    }

    /// When the first lease of these queues lapses, by the clock of this process, which shows `now` and
    /// `elapsed`. Paused queues are left out: a claim would return none of their jobs.
    fn next_lapse(&self, wants: &[Want], now: Timestamp, elapsed: Duration) -> Option<Timestamp> {
        let queues = wants.iter().map(|want| &want.queue);
        let active = queues.filter(|queue| !self.machine.is_paused(queue));
        Some(now + self.leases.next_lapse(active)?.saturating_sub(elapsed))
    }

    /// Names the leases that have lapsed by this elapsed time, each once, in commands that end them.
    /// The caller must append all of these.
    pub(crate) fn end_lapsed(&mut self, elapsed: Duration) -> Vec<Command> {
        let lapsed = self.leases.name_lapsed(elapsed);
        let entries = lapsed.chunks(MAX_ENTRY_ITEMS);
        entries.map(|lapsed| Command::EndLeases(lapsed.to_vec())).collect()
    }

    /// Points the jobs in a part of the snapshot that began at offset `begin` to the payloads in that
    /// part, since the generations before it will be deleted.
    fn move_payloads(&mut self, offset: u64, index: u32, begin: u64, jobs: &[wire::SnapshotJob]) {
        for (job_index, wire::SnapshotJob { job, payload, .. }) in jobs.iter().enumerate() {
            let position = LogPosition { offset, entry: index, job: job_index as u32 };
            let Some(current) = self.machine.peek(job.id) else { continue };
            let old = PayloadRef::of(current);
            // A job stored after the beginning of the snapshot may reuse the id of one that has
            // ended, and a job may have gone on to its next step.
            if old.position.offset < begin {
                let payload =
                    PayloadRef { checksum: old.checksum, ..PayloadRef::new(position, payload) };
                let payload = payload.to_bytes_of(current);
                self.machine.set_payload(job.id, payload);
            }
        }
    }

    /// The current state as a snapshot: its first parts, and the jobs without payloads.
    pub(crate) fn snapshot(&self) -> (Vec<SnapshotPart>, Vec<JobSnapshot>) {
        let state = self.machine.snapshot();
        let lists = list_parts(&state, self.leases.to_wire());
        let queue = |(name, paused, totals): (_, _, _)| (name, paused, to_wire_totals(&totals));
        let header = SnapshotHeader {
            log_id: self.log_id,
            last_seq: state.last_seq,
            last_token: state.last_token,
            last_ended: state.last_ended,
            producers: self.producers.to_wire(),
            queues: state.queues.into_iter().map(queue).collect(),
            history: self.machine.history_limits().into(),
            capacity: self.capacity,
        };
        let header = SnapshotPart::Header(Box::new(header));
        (std::iter::once(header).chain(lists).collect(), state.jobs)
    }

    /// Restores the state from a snapshot, once one is complete. Returns the entries since its
    /// beginning, which have to be applied next; none if no snapshot is complete.
    pub(crate) fn restore(&mut self) -> Vec<(u64, u32, Entry)> {
        let Some(snapshot) = self.collector.as_mut().and_then(SnapshotCollector::take_complete)
        else {
            return Vec::new();
        };
        self.machine =
            Machine::restore(snapshot.machine, snapshot.history_limits).with_explicit_lease_ends();
        self.machine.measure(SIZES);
        self.capacity = snapshot.capacity;
        self.leases = ObservedLeases::default();
        for lease in snapshot.leases {
            self.leases.restore(lease, self.seen);
        }
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
        elapsed: Duration,
    ) -> Option<Timestamp> {
        let next_due = self.machine.next_due(wants, &affinity(now, is_prefetched), now);
        next_due.into_iter().chain(self.next_lapse(wants, now, elapsed)).min()
    }

    /// Whether jobs are due, but a claim would return none of them, because all are reserved for
    /// processes that have prefetched their messages.
    pub(crate) fn all_reserved_for_others(
        &mut self,
        wants: &[Want],
        is_prefetched: impl Fn(JobId) -> bool,
        now: Timestamp,
        elapsed: Duration,
    ) -> bool {
        !self.leases.has_lapsed(wants, elapsed)
            && self.machine.all_due_reserved(wants, &affinity(now, is_prefetched), now)
    }

    /// How much of its capacity the log uses.
    pub(crate) fn usage(&self) -> Usage {
        Usage::of(&self.machine, self.capacity)
    }

    /// Whether the log has room for these new jobs, besides this many bytes.
    pub(crate) fn has_room<'a>(
        &self,
        bytes: u64,
        jobs: impl IntoIterator<Item = &'a wire::NewJob>,
    ) -> bool {
        let usage = self.usage();
        Usage { used: usage.used + bytes, ..usage }.has_room(&self.machine, jobs)
    }

    /// Distinguishes this log from others of the same name; 0 while unknown.
    pub(crate) fn log_id(&self) -> u64 {
        self.log_id
    }

    /// Number of producers that have written lately.
    pub(crate) fn active_producers(&self) -> u64 {
        self.producers.active()
    }

    /// Whether the generation that was read last is closed: the log goes on in the next one.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Goes on in the next generation.
    pub(crate) fn begin_generation(&mut self) {
        self.is_closed = false;
    }

    #[cfg(test)]
    pub(crate) fn leases(&self) -> Vec<wire::StandingLease> {
        self.leases.to_wire()
    }

    /// The last entry of each producer.
    pub(crate) fn producers(&self) -> &Producers {
        &self.producers
    }

    /// As [`producers`](Self::producers), of a replica that is replaced.
    pub(crate) fn into_producers(self) -> Producers {
        self.producers
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
