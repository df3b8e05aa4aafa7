//! The replica: all jobs, equal in all processes that have read up to the same entry.

use std::collections::HashSet;
use std::time::Duration;

use dq_core::machine::{Affinity, JobSnapshot, Machine};
use dq_core::{
    ClaimParams, Claimed, DeadKind, DeadReason, HistoryLimit, HistoryLimits, Job, JobId, JobRef,
    Renewal, Renewed, Reschedule, Settled, Timestamp, Want,
};

use super::capacity::{RESERVED_PER_JOB, SIZES, Usage};
use super::leases::ObservedLeases;
use super::producers::Producers;
use super::snapshot::{SnapshotCollector, list_parts, to_wire_totals};
use super::stored::{LogPosition, PayloadRef, ReplicaJob, ReplicaMachine, StoredPayload};
use crate::entries::MAX_ENTRY_ITEMS;
use crate::log::generation::Generation;
use crate::log::reply::CommandReply;
use crate::log::wire::{self, Command, Entry, SnapshotEntry, SnapshotHeader, SnapshotPart};

// These three decide which jobs a claim leases, so they are part of the log's format. Other values
// need a new kind of claim entry.

/// How early a job can be claimed: about the duration of a call. The claimer waits for the rest.
pub(crate) const CLAIM_AHEAD: Duration = Duration::from_millis(2);

/// How long a due job is reserved for processes with its payload.
pub(crate) const RESERVED_FOR: Duration = Duration::from_millis(250);

/// A job stored this recently counts as in every process's buffer. Longer than `MIN_MESSAGE_DELAY`
/// in `engine.rs`, because nobody could claim a job without a message before [`RESERVED_FOR`] is
/// over.
const RECENTLY_STORED: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) enum Applied {
    Reply(CommandReply),
    Duplicate,
    /// An earlier entry of the producer is missing, so this one has no effect. The producer appends
    /// from the missing one on again.
    Gap {
        /// The last sequence number with effect; 0 for an unknown producer.
        last: u64,
    },
    /// Kept until the replica is restored from a snapshot.
    Deferred,
}

#[derive(Debug)]
pub(crate) struct Replica {
    machine: ReplicaMachine,
    /// Derived from the log's first entry; 0 if unknown.
    log_id: u64,
    producers: Producers,
    /// `None` before the log says it.
    capacity: Option<u64>,
    leases: ObservedLeases,
    is_closed: bool,
    /// This process's elapsed time when it saw the entry that is being applied.
    seen: Duration,
    /// `None` once a snapshot is complete.
    collector: Option<SnapshotCollector>,
}

impl Default for Replica {
    /// A replica that waits for its first entry.
    fn default() -> Self {
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
}

impl Replica {
    /// A replica that reads from this offset on. It has to be restored from a snapshot, unless a
    /// generation begins empty there.
    pub(crate) fn starting_at(first: u64) -> Self {
        let mut replica = Self::default();
        let generation = Generation::of(first);
        if generation.begins_empty() && first == generation.offset(0) {
            replica.collector = None;
        }
        replica
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.collector.is_none()
    }

    /// Sets the elapsed time at which this process read or submitted the next entries. Their leases
    /// count from then, never earlier than their holders count, so none expires while its holder
    /// relies on it.
    pub(crate) fn set_seen(&mut self, seen: Duration) {
        self.seen = seen;
    }

    /// Applies the entry at this index of the message at this offset.
    pub(crate) fn apply(&mut self, offset: u64, index: u32, entry: Entry) -> Applied {
        if let Some(collector) = &mut self.collector {
            collector.add(offset, index, entry);
            return Applied::Deferred;
        }
        if self.log_id == 0 {
            // Earlier messages may be foreign or damaged. Set even by an entry without effect,
            // because a producer goes on in a new log in the middle of its sequence. It may have
            // begun the former log too, so its id alone does not do.
            self.log_id = entry.producer_id.wrapping_add(entry.sequence).max(1);
        }
        let last = self.producers.last_sequence(entry.producer_id);
        if entry.sequence <= last {
            return Applied::Duplicate;
        }
        if entry.sequence > last + 1 {
            return Applied::Gap { last };
        }
        self.producers.record(entry.producer_id, entry.sequence);
        Applied::Reply(self.execute(offset, index, entry))
    }

    fn execute(&mut self, offset: u64, index: u32, entry: Entry) -> CommandReply {
        let usage = self.usage();
        if !usage.has_room(&self.machine, entry.command.new_jobs()) {
            return CommandReply::Full;
        }
        let (machine, at) = (&mut self.machine, entry.at);
        let position = |job: usize| LogPosition { offset, entry: index, job: job as u32 };
        let stored = |job: usize, new: &wire::NewJob| {
            StoredPayload::new(PayloadRef::new(position(job), &new.payload), &new.headers)
        };
        match entry.command {
            Command::Barrier => CommandReply::Done,
            Command::Schedule(jobs) => {
                let jobs = jobs.iter().enumerate();
                let schedule = |(job, new): (usize, &wire::NewJob)| {
                    machine.schedule(new.to_core(), stored(job, new), at)
                };
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
            Command::Claim(claim) => CommandReply::Claimed(self.claim(&claim, None, at)),
            Command::ClaimLimited(claim, starting) => {
                CommandReply::Claimed(self.claim(&claim, Some(&starting), at))
            }
            Command::Settle(settlements) => {
                let settle = |(index, settlement): (usize, &wire::Settlement)| {
                    let settled = machine.settle(&usage.shorten(settlement.to_core()), at);
                    if settled == Settled::Accepted {
                        self.leases.end(settlement.job());
                        if let Some(payload) = settlement.payload() {
                            let payload = PayloadRef::new(position(index), payload);
                            set_payload(machine, settlement.job(), payload);
                        }
                    }
                    settled
                };
                CommandReply::Settled(settlements.iter().enumerate().map(settle).collect())
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
                CommandReply::Operated(machine.operate(operation.to_core(&queue), at))
            }
            Command::Park(parked) => {
                for (job, (new, reason)) in parked.iter().enumerate() {
                    let reason = DeadReason::new(DeadKind::Quarantined, reason.as_str());
                    machine.insert_dead(new.to_core(), stored(job, new), reason, at);
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
                // Another process may have closed this generation already.
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

    fn claim(&mut self, claim: &wire::Claim, starting: Option<&[u64]>, at: Timestamp) -> Claimed {
        let prefetched: HashSet<JobId> = claim.prefetched.iter().copied().collect();
        let limit = usize::try_from(claim.limit).unwrap_or(usize::MAX);
        let wants = claim.wants(starting);
        let params = ClaimParams::new(&wants, limit, &claim.worker);
        let affinity = affinity(at, |id| prefetched.contains(&id));
        let mut claimed = self.machine.claim_preferring(params, &affinity, at);
        for leased in &claimed.jobs {
            // From now, even if the job is due later: a lease must not expire before the end that
            // its holder knows.
            let lease_for = leased.leased_until.since(at);
            let lease = wire::StandingLease::granted(leased.lease(), lease_for);
            self.leases.observe(lease, self.seen);
        }
        let next_expiry = self.next_expiry(&wants, at, self.seen);
        claimed.next_due = claimed.next_due.into_iter().chain(next_expiry).min();
        claimed
    }

    /// When the first lease expires, by this process's clock. A claim returns no jobs of paused
    /// queues.
    fn next_expiry(&self, wants: &[Want], now: Timestamp, elapsed: Duration) -> Option<Timestamp> {
        let queues = wants.iter().map(|want| &want.queue);
        let active = queues.filter(|queue| !self.machine.is_paused(queue));
        Some(now + self.leases.next_expiry(active)?.saturating_sub(elapsed))
    }

    /// Commands that end the expired leases, each named once. The caller must append all.
    pub(crate) fn end_expired(&mut self, elapsed: Duration) -> Vec<Command> {
        let expired = self.leases.name_expired(elapsed);
        let entries = expired.chunks(MAX_ENTRY_ITEMS);
        entries.map(|expired| Command::EndLeases(expired.to_vec())).collect()
    }

    /// Points jobs to their payloads in this snapshot part, because earlier generations will be
    /// deleted.
    fn move_payloads(&mut self, offset: u64, index: u32, begin: u64, jobs: &[wire::SnapshotJob]) {
        for (job_index, wire::SnapshotJob { job, payload, .. }) in jobs.iter().enumerate() {
            let position = LogPosition { offset, entry: index, job: job_index as u32 };
            let Some(old) = self.machine.stored(job.id).map(|stored| stored.payload) else {
                continue;
            };
            // A later job may reuse an ended one's id, and a job may have gone on to its next step.
            if old.position.offset < begin {
                let moved = PayloadRef::new(position, payload);
                let moved = PayloadRef { checksum: old.checksum, ..moved };
                set_payload(&mut self.machine, job.id, moved);
            }
        }
    }

    /// Returns the first parts of a snapshot, and its jobs without payloads.
    pub(crate) fn snapshot(&self) -> (Vec<SnapshotPart>, Vec<JobSnapshot<StoredPayload>>) {
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

    /// Restores the state once a snapshot is complete. Returns the entries since its beginning, to
    /// be applied next.
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
            self.leases.observe(lease, self.seen);
        }
        self.log_id = snapshot.log_id;
        self.producers = snapshot.producers;
        self.collector = None;
        snapshot.later_entries
    }

    pub(crate) fn next_due(
        &mut self,
        wants: &[Want],
        is_prefetched: impl Fn(JobId) -> bool,
        now: Timestamp,
        elapsed: Duration,
    ) -> Option<Timestamp> {
        let next_due = self.machine.next_due(wants, &affinity(now, is_prefetched), now);
        next_due.into_iter().chain(self.next_expiry(wants, now, elapsed)).min()
    }

    /// Whether jobs are due and all are reserved for others.
    pub(crate) fn all_reserved_for_others(
        &mut self,
        wants: &[Want],
        is_prefetched: impl Fn(JobId) -> bool,
        now: Timestamp,
        elapsed: Duration,
    ) -> bool {
        !self.leases.has_expired(wants, elapsed)
            && self.machine.all_due_reserved(wants, &affinity(now, is_prefetched), now)
    }

    pub(crate) fn usage(&self) -> Usage {
        let reserved = RESERVED_PER_JOB * self.machine.len() as u64;
        Usage { used: self.machine.stored_bytes() + reserved, capacity: self.capacity }
    }

    pub(crate) fn has_room<'a>(
        &self,
        bytes: u64,
        jobs: impl IntoIterator<Item = &'a wire::NewJob>,
    ) -> bool {
        let usage = self.usage();
        Usage { used: usage.used + bytes, ..usage }.has_room(&self.machine, jobs)
    }

    pub(crate) fn log_id(&self) -> u64 {
        self.log_id
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(crate) fn begin_generation(&mut self) {
        self.is_closed = false;
    }

    #[cfg(test)]
    pub(crate) fn leases(&self) -> Vec<wire::StandingLease> {
        self.leases.to_wire()
    }

    pub(crate) fn producers(&self) -> &Producers {
        &self.producers
    }

    pub(crate) fn into_producers(self) -> Producers {
        self.producers
    }

    pub(crate) fn machine(&mut self) -> &mut ReplicaMachine {
        &mut self.machine
    }

    pub(crate) fn job(&self, id: JobId) -> Option<ReplicaJob> {
        let (job, stored) = self.machine.peek(id).zip(self.machine.stored(id))?;
        Some(ReplicaJob { job: job.clone(), stored: stored.clone() })
    }
}

/// Points the job to another payload. It keeps its headers.
fn set_payload(machine: &mut ReplicaMachine, job: JobId, payload: PayloadRef) {
    if let Some(stored) = machine.stored(job) {
        machine.set_stored(job, stored.with_payload(payload));
    }
}

/// A process prefers recently stored jobs, and jobs whose payload it has.
fn affinity(
    now: Timestamp,
    is_prefetched: impl Fn(JobId) -> bool,
) -> Affinity<impl Fn(&Job) -> bool> {
    let recent = now - RECENTLY_STORED;
    let prefers = move |job: &Job| job.created >= recent || is_prefetched(job.id);
    Affinity { prefers, claim_ahead: CLAIM_AHEAD, reserved_for: RESERVED_FOR }
}
