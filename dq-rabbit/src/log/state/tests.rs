//! Replicas that read the same log are equal, although entries are duplicated or lost on the way to
//! it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use dq_core::machine::MachineSnapshot;
use dq_core::{
    Announcement, ClaimParams, DeadKind, DeadReason, Due, FencingToken, HistoryLimit,
    HistoryLimits, JobId, JobKey, JobRef, Lease, NewJob, OnConflict, OnRunning, QueueName,
    Settlement, Timestamp, Verdict, Want,
};
use proptest::prelude::*;

use super::replica::{Applied, Replica};
use super::snapshot::job_parts;
use super::stored::{PayloadRef, StoredPayload};
use crate::log::command::CommandReply;
use crate::log::generation::Generation;
use crate::log::generation::retention::{Retention, SnapshotStep};
use crate::log::wire::{
    self, Command, Entry, QueueOperation, SnapshotEntry, SnapshotPart, StandingLease,
};

const PRODUCERS: u64 = 3;

#[derive(Debug, Clone)]
enum Step {
    Append(Call),
    /// A call that never reaches the log.
    Lose(Call),
    /// Appends all entries again without effect, and `applied` with effect.
    Resend {
        applied: u8,
    },
    /// Begins a snapshot, or appends its next part.
    Snapshot,
    /// The snapshot's writer is killed.
    Abandon,
    /// If the snapshot is complete.
    Close,
    /// Another producer closed that generation first, and this one writes its close again.
    CloseAgain,
    /// A producer that is behind writes to the closed generation.
    Late(Call),
}

pub(in crate::log) type Log = BTreeMap<u64, Vec<Entry>>;

#[derive(Debug, Clone)]
enum Call {
    Schedule { id: u8, queue: u8, key: Option<u8>, delay: u64, detach: bool, remember: u64 },
    Cancel { id: u8, queue: u8 },
    Claim { queue: u8, limit: usize },
    Settle { verdict: u8 },
    Operate { queue: u8, operation: u8 },
    SetHistory { queue: u8, max: u32, age: u64 },
    EndLeases,
    Announce { name: u8, ttl: u64 },
    SetCapacity { bytes: u64 },
}

fn call() -> impl Strategy<Value = Call> {
    let key = proptest::option::weighted(0.3, 0..4u8);
    prop_oneof![
        4 => (0..40u8, 0..2u8, key, 0..2_000u64, any::<bool>(), 0..1_000u64).prop_map(
            |(id, queue, key, delay, detach, remember)| {
                let remember = remember.saturating_sub(500);
                Call::Schedule { id, queue, key, delay, detach, remember }
            }
        ),
        1 => (0..40u8, 0..2u8).prop_map(|(id, queue)| Call::Cancel { id, queue }),
        2 => (0..2u8, 1..6usize).prop_map(|(queue, limit)| Call::Claim { queue, limit }),
        3 => (0..7u8).prop_map(|verdict| Call::Settle { verdict }),
        2 => Just(Call::EndLeases),
        1 => (0..2u8, 0..5u8).prop_map(|(queue, operation)| Call::Operate { queue, operation }),
        1 => (0..2u8, 0..5u32, 0..2_000u64)
            .prop_map(|(queue, max, age)| Call::SetHistory { queue, max, age }),
        1 => (0..3u8, 0..1_000u64).prop_map(|(name, ttl)| Call::Announce { name, ttl }),
        1 => (0..30_000u64).prop_map(|bytes| Call::SetCapacity { bytes }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => call().prop_map(Step::Append),
        1 => call().prop_map(Step::Lose),
        2 => (0..8u8).prop_map(|applied| Step::Resend { applied }),
        6 => Just(Step::Snapshot),
        1 => Just(Step::Abandon),
        2 => Just(Step::Close),
        2 => Just(Step::CloseAgain),
        1 => call().prop_map(Step::Late),
    ]
}

pub(in crate::log) fn queue(number: u8) -> QueueName {
    QueueName::new(format!("q{number}")).unwrap()
}

pub(in crate::log) fn id(number: u8) -> JobId {
    JobId::from_bytes([number; 16])
}

fn stale_settlement() -> wire::Settlement {
    let lease = Lease { queue: queue(0), job: id(0), token: FencingToken(u64::MAX) };
    wire::Settlement::try_from(&Settlement::new(lease, Verdict::Done)).unwrap()
}

struct Simulation {
    log: Log,
    /// In this generation, and in the closed one.
    next_offset: u64,
    late_offset: Option<u64>,
    last_closed: Option<Generation>,
    retention: Retention,
    replica: Replica,
    applied: Vec<Entry>,
    /// Also entries that never reached the log.
    sent: HashMap<u64, Vec<Entry>>,
    /// By producer: its snapshot's remaining entries.
    missing_entries: HashMap<u64, VecDeque<SnapshotEntry>>,
    complete: BTreeSet<Generation>,
    leases: Vec<Lease>,
    now: i64,
}

impl Simulation {
    fn new() -> Self {
        Self {
            log: Log::new(),
            next_offset: 0,
            late_offset: None,
            last_closed: None,
            retention: Retention::new(u64::MAX, true, Duration::ZERO),
            replica: Replica::starting_at(0),
            applied: Vec::new(),
            sent: HashMap::new(),
            missing_entries: HashMap::new(),
            complete: BTreeSet::new(),
            leases: Vec::new(),
            now: 0,
        }
    }

    fn command(&mut self, call: &Call) -> Command {
        match *call {
            Call::Schedule { id: number, queue: queue_number, key, delay, detach, remember } => {
                let due = Due::After(Duration::from_millis(delay));
                let payload = format!("{number} at {}", self.now);
                let mut job = NewJob::new(id(number), queue(queue_number), due, payload.into());
                if number % 2 == 0 {
                    job.headers.insert("colour", format!("of {number}"));
                }
                job.key = key.map(|key| JobKey::new(key.to_string()).unwrap());
                job.on_conflict =
                    if delay % 2 == 0 { OnConflict::Keep } else { OnConflict::Replace };
                if detach {
                    job.on_running = OnRunning::Detach;
                }
                job.remember = Duration::from_millis(remember);
                Command::Schedule(vec![job.try_into().unwrap()])
            }
            Call::Cancel { id: number, queue: queue_number } => {
                Command::Cancel(vec![(&JobRef::new(queue(queue_number), id(number))).into()])
            }
            Call::Claim { queue: queue_number, limit } => {
                let lease_for = Duration::from_millis(1_000);
                let wants = [Want::new(queue(queue_number), limit, lease_for)];
                // Half the ids that `call` makes.
                let prefetched = (0..20).map(id).collect();
                let worker = format!("worker {limit}");
                Command::Claim(wire::Claim::new(
                    &ClaimParams::new(&wants, limit, &worker),
                    prefetched,
                ))
            }
            Call::Settle { verdict } => {
                let Some(lease) = self.leases.pop() else { return Command::Barrier };
                let verdict = match verdict {
                    0 => Verdict::Done,
                    1 => Verdict::retry(Due::NOW, "a reason"),
                    2 => Verdict::Snooze(Due::After(Duration::from_secs(1))),
                    3 => Verdict::Release { started: false },
                    4 => Verdict::skip("another reason"),
                    5 => {
                        let payload = format!("the step at {}", self.now).into();
                        Verdict::Again { due: Due::NOW, payload }
                    }
                    _ => Verdict::Dead {
                        reason: DeadReason::new(DeadKind::Rejected, "so"),
                        failed: true,
                    },
                };
                let settlement = Settlement::new(lease, verdict);
                let settlement = wire::Settlement::try_from(&settlement).unwrap();
                // Not at index 0 of its entry.
                Command::Settle(vec![stale_settlement(), settlement])
            }
            Call::Operate { queue: queue_number, operation } => {
                let jobs = (0..20).map(id).collect();
                let operation = match operation {
                    0 => QueueOperation::Pause,
                    1 => QueueOperation::Resume,
                    2 => QueueOperation::Replay(jobs, Due::NOW.into()),
                    3 => QueueOperation::Remove(jobs),
                    _ => QueueOperation::Purge,
                };
                Command::Operate(queue(queue_number), operation)
            }
            Call::SetHistory { queue: queue_number, max, age } => {
                let limit = HistoryLimit::new(max, Duration::from_millis(age));
                let mut limits = HistoryLimits::all(HistoryLimit::new(10, Duration::MAX));
                limits.queues.insert(queue(queue_number), limit);
                Command::SetHistory((&limits).into())
            }
            Call::SetCapacity { bytes } => Command::SetCapacity(bytes),
            Call::EndLeases => {
                let elapsed = Duration::from_millis(self.now.unsigned_abs());
                let mut ends = self.replica.end_expired(elapsed);
                ends.pop().unwrap_or(Command::EndLeases(Vec::new()))
            }
            Call::Announce { name, ttl } => {
                let info = format!("at {}", self.now);
                let ttl = Duration::from_millis(ttl);
                Command::Announce(Announcement::new(format!("runner {name}"), info, ttl).into())
            }
        }
    }

    fn entry(&mut self, producer_id: u64, command: Command) -> Entry {
        let at = Timestamp::from_millis(self.now + 300 * producer_id as i64);
        let sent = self.sent.entry(producer_id).or_default();
        let entry = Entry { producer_id, sequence: sent.len() as u64 + 1, at, command };
        sent.push(entry.clone());
        entry
    }

    fn append(&mut self, message: Vec<Entry>) {
        self.replica.set_seen(Duration::from_millis(self.now.unsigned_abs()));
        let offset = self.next_offset;
        self.next_offset += 1;
        let generation = Generation::of(offset);
        self.log.insert(offset, message.clone());
        for (index, entry) in message.into_iter().enumerate() {
            let applied = self.replica.apply(offset, index as u32, entry.clone());
            let closes = matches!(applied, Applied::Reply(_))
                && matches!(entry.command, Command::Close(number) if number == generation.number());
            assert_eq!(self.replica.is_closed(), closes, "at {offset}: {entry:?}");
            let Applied::Reply(reply) = applied else { continue };
            if let Some(step) = SnapshotStep::of(&entry.command) {
                self.retention.observe(
                    offset,
                    step,
                    Duration::from_millis(self.now.unsigned_abs()),
                );
            }
            if let CommandReply::Claimed(claimed) = reply {
                self.leases.extend(claimed.jobs.iter().map(|leased| leased.lease()));
            }
            match entry.command {
                Command::Snapshot(SnapshotEntry::Begin)
                    if self.retention.is_in_progress(offset) =>
                {
                    self.begin_snapshot(entry.producer_id, offset);
                }
                _ => {}
            }
            if self.retention.is_complete() && !generation.begins_empty() {
                self.complete.insert(generation);
            }
            self.applied.push(entry);
            if self.replica.is_closed() {
                self.last_closed = Some(generation);
                self.late_offset = Some(self.next_offset);
                self.next_offset = generation.next().offset(0);
                self.retention =
                    Retention::new(u64::MAX, false, Duration::from_millis(self.now.unsigned_abs()));
                self.replica.begin_generation();
                return;
            }
        }
    }

    fn begin_snapshot(&mut self, producer_id: u64, begin: u64) {
        let (mut parts, jobs) = self.replica.snapshot();
        for part in job_parts(jobs, |id, stored| Some(payload(&self.log, id, stored))) {
            let SnapshotPart::Jobs(jobs) = part else { panic!("{part:?}") };
            parts.extend(jobs.into_iter().map(|job| SnapshotPart::Jobs(vec![job])));
        }
        self.missing_entries.insert(producer_id, SnapshotEntry::all(begin, parts).collect());
    }

    fn resend(&mut self, producer_id: u64, applied: u8) {
        let last = self.replica.producers().last_sequence(producer_id) as usize;
        let from = last.saturating_sub(applied.into());
        let Some(sent) = self.sent.get(&producer_id) else { return };
        let resent = sent[from..].to_vec();
        if !resent.is_empty() {
            self.append(resent);
        }
    }

    fn has_unread(&self, producer_id: u64) -> bool {
        let last = self.replica.producers().last_sequence(producer_id);
        self.sent.get(&producer_id).is_some_and(|sent| sent.len() as u64 > last)
    }

    fn step(&mut self, producer_id: u64, step: &Step) {
        self.now += 50;
        match step {
            Step::Append(call) => {
                let command = self.command(call);
                let entry = self.entry(producer_id, command);
                self.append(vec![entry]);
            }
            Step::Lose(call) => {
                let command = self.command(call);
                self.entry(producer_id, command);
            }
            Step::Resend { applied } => self.resend(producer_id, *applied),
            Step::Abandon => {
                self.missing_entries.clear();
                // `SNAPSHOT_TIMEOUT`, so that another snapshot may begin.
                self.now += 15_000;
            }
            Step::Close if !self.retention.is_complete() => {}
            Step::Close => {
                let generation = Generation::of(self.next_offset).number();
                let entry = self.entry(producer_id, Command::Close(generation));
                // Has to be sent again.
                let behind = self.entry(producer_id, Command::Barrier);
                self.append(vec![entry, behind]);
            }
            Step::CloseAgain => {
                let Some(before) = self.last_closed else { return };
                let entry = self.entry(producer_id, Command::Close(before.number()));
                self.append(vec![entry]);
            }
            Step::Late(call) => {
                let command = self.command(call);
                let entry = self.entry(producer_id, command);
                if let Some(late) = &mut self.late_offset {
                    self.log.insert(*late, vec![entry]);
                    *late += 1;
                }
            }
            Step::Snapshot => {
                if self.has_unread(producer_id) {
                    return self.resend(producer_id, 2);
                }
                let next = self.missing_entries.entry(producer_id).or_default().pop_front();
                let next = next.unwrap_or(SnapshotEntry::Begin);
                let entry = self.entry(producer_id, Command::Snapshot(next));
                self.append(vec![entry]);
            }
        }
    }
}

pub(in crate::log) fn payload(log: &Log, job: JobId, stored: &PayloadRef) -> Bytes {
    let position = stored.position;
    let entry = &log[&position.offset][position.entry as usize];
    let found = entry.command.payload(position.job);
    let (id, payload) = found.unwrap_or_else(|| panic!("no payload at {position:?}"));
    assert_eq!(id, job);
    assert!(stored.is_of(payload));
    assert_eq!(stored.length as usize, payload.len());
    payload.clone()
}

/// The state with payloads in their jobs.
fn contents(
    log: &Log,
    replica: &mut Replica,
) -> (MachineSnapshot<StoredPayload>, HistoryLimits, Vec<StandingLease>) {
    let leases = replica.leases();
    let machine = replica.machine();
    let mut state = machine.snapshot();
    let limits = machine.history_limits().clone();
    for job in &mut state.jobs {
        job.job.headers = job.stored.headers();
        job.job.payload = payload(log, job.job.id, &job.stored.payload);
        job.stored = StoredPayload::default();
    }
    state.jobs.sort_by_key(|job| job.job.id);
    state.queues.sort_by(|a, b| a.0.cmp(&b.0));
    state.ended.sort_by_key(|(seq, _)| *seq);
    state.pins.sort_by_key(|(receipt, _)| receipt.id);
    (state, limits, leases)
}

fn read_from(log: &Log, mut generation: Generation) -> Replica {
    let first = generation.offset(0);
    let mut replica = Replica::starting_at(first);
    for (offset, message) in log.range(first..) {
        if Generation::of(*offset) != generation {
            continue;
        }
        for (index, entry) in message.iter().enumerate() {
            if let Applied::Deferred = replica.apply(*offset, index as u32, entry.clone()) {
                for (offset, index, entry) in replica.restore() {
                    replica.apply(offset, index, entry);
                }
            }
            if replica.is_closed() {
                replica.begin_generation();
                generation = generation.next();
                break;
            }
        }
    }
    replica
}

fn snapshot_bytes(log: &Log, replica: &Replica) -> u64 {
    fn sum<T: serde::Serialize>(items: &[T]) -> u64 {
        items.iter().map(wire::encoded_size).sum()
    }
    let (parts, jobs) = replica.snapshot();
    let parts =
        parts.into_iter().chain(job_parts(jobs, |id, stored| Some(payload(log, id, stored))));
    let bytes = parts.map(|part| match part {
        SnapshotPart::Jobs(jobs) => sum(&jobs),
        SnapshotPart::Ended(jobs) => sum(&jobs),
        SnapshotPart::Pins(pins) => sum(&pins),
        SnapshotPart::Runners(runners) => sum(&runners),
        SnapshotPart::Header(_) | SnapshotPart::Leases(_) => 0,
    });
    bytes.sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn replicas_are_equal_wherever_they_start_to_read(
        steps in proptest::collection::vec((1..=PRODUCERS, step()), 1..120)
    ) {
        let mut simulation = Simulation::new();
        for (producer_id, step) in &steps {
            simulation.step(*producer_id, step);
        }
        for producer_id in 1..=PRODUCERS {
            // A close ends the message that resends entries.
            while simulation.has_unread(producer_id) {
                simulation.resend(producer_id, 3);
            }
        }
        let Simulation { log, mut replica, applied, sent, complete, .. } = simulation;
        let expected = contents(&log, &mut replica);
        let bytes = snapshot_bytes(&log, &replica);
        prop_assert_eq!(replica.machine().stored_bytes(), bytes);

        for (producer_id, sent) in &sent {
            let applied = applied.iter().filter(|entry| entry.producer_id == *producer_id);
            let sequence: Vec<_> = applied.map(|entry| entry.sequence).collect();
            prop_assert_eq!(&sequence, &(1..=sent.len() as u64).collect::<Vec<_>>());
        }
        // The applied entries alone give the same state. Parts hold offsets of the original log,
        // and a close would end this log, so commands without effect replace both.
        let clean = applied.into_iter().map(|entry| match &entry.command {
            Command::Snapshot(_) | Command::Close(_) => vec![Entry { command: Command::Renew(Vec::new()), ..entry }],
            _ => vec![entry],
        });
        let clean: Log = (0..).zip(clean).collect();
        let mut first = read_from(&clean, Generation::FIRST);
        prop_assert_eq!(&contents(&clean, &mut first), &expected);

        let generations: BTreeSet<_> = log.keys().map(|offset| Generation::of(*offset)).collect();
        for first in generations {
            let mut reader = read_from(&log, first);
            let is_ready = first == Generation::FIRST || complete.contains(&first);
            prop_assert_eq!(reader.is_ready(), is_ready, "from {:?}", first);
            if is_ready {
                let state = contents(&log, &mut reader);
                prop_assert_eq!(&state, &expected, "from {:?}", first);
                prop_assert_eq!(reader.producers(), replica.producers());
                prop_assert_eq!(reader.log_id(), replica.log_id());
                prop_assert_eq!(reader.machine().stored_bytes(), bytes, "from {:?}", first);
                prop_assert_eq!(reader.usage(), replica.usage());
            }
        }
    }
}

#[test]
fn a_log_that_begins_with_a_foreign_message_has_an_id() {
    let entry = |sequence| Entry {
        producer_id: 7,
        sequence,
        at: Timestamp::EPOCH,
        command: Command::Barrier,
    };
    let mut replica = Replica::starting_at(0);
    assert_eq!(replica.log_id(), 0);
    replica.apply(1, 0, entry(1));
    let log_id = replica.log_id();
    assert_ne!(log_id, 0);
    replica.apply(2, 0, entry(2));
    assert_eq!(replica.log_id(), log_id);
}
