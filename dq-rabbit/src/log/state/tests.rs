//! Replicas that read the same log are equal, although entries are repeated, or lost on the way to
//! it.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use dq_core::machine::MachineSnapshot;
use dq_core::{
    Announcement, ClaimParams, DeadKind, DeadReason, Due, FencingToken, Flow, HistoryLimit,
    HistoryLimits, JobKey, JobRef, Lease, NewJob, OnConflict, OnRunning, Rate, Renewal, Reschedule,
    Settlement, Timestamp, Verdict, Want,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::replica::{Applied, Replica};
use super::snapshot::job_parts;
use super::stored::StoredPayload;
use super::test_log::{Messages, TestLog, id, payload, queue};
use crate::log::generation::Generation;
use crate::log::reply::CommandReply;
use crate::log::wire::entry::QueueOperation;
use crate::log::wire::{self, Command, Entry, SnapshotEntry, SnapshotPart, StandingLease};

const PRODUCERS: u64 = 3;
/// Few, so that calls meet the same jobs.
const IDS: u8 = 40;
const QUEUES: u8 = 2;

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
    Abandon,
    Close,
    /// Another producer closed that generation first, and this one writes its close again.
    CloseAgain,
    Late(Call),
}

#[derive(Debug, Clone)]
enum Call {
    Command(Command),
    Settle(Verdict),
    Renew,
    EndLeases,
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

fn call() -> impl Strategy<Value = Call> {
    let cancel = (0..IDS, 0..QUEUES).prop_map(|(number, queue_number)| {
        Command::Cancel(vec![(&JobRef::new(queue(queue_number), id(number))).into()])
    });
    let reschedule = (0..IDS, 0..QUEUES, 0..2_000u64).prop_map(|(number, queue_number, delay)| {
        let job = JobRef::new(queue(queue_number), id(number));
        let due = Due::After(Duration::from_millis(delay));
        Command::Reschedule(vec![(&Reschedule { job, due }).into()])
    });
    let claim = (0..QUEUES, 1..6usize).prop_map(|(queue_number, limit)| {
        let wants = [Want::new(queue(queue_number), limit, Duration::from_secs(1))];
        let prefetched = (0..IDS / 2).map(id).collect();
        let worker = format!("worker {limit}");
        let claim = wire::Claim::new(&ClaimParams::new(&wants, limit, &worker), prefetched);
        match limit % 2 {
            0 => Command::Claim(claim),
            _ => Command::ClaimLimited(claim, vec![1]),
        }
    });
    let operate = (0..QUEUES, operation())
        .prop_map(|(queue_number, operation)| Command::Operate(queue(queue_number), operation));
    let set_history = (0..QUEUES, 0..5u32, 0..2_000u64).prop_map(|(queue_number, max, age)| {
        let mut limits = HistoryLimits::all(HistoryLimit::new(10, Duration::MAX));
        let limit = HistoryLimit::new(max, Duration::from_millis(age));
        limits.queues.insert(queue(queue_number), limit);
        Command::SetHistory((&limits).into())
    });
    let announce = (0..3u8, any::<u8>(), 0..1_000u64).prop_map(|(name, info, ttl)| {
        let ttl = Duration::from_millis(ttl);
        let info = format!("info {info}");
        Command::Announce(Announcement::new(format!("runner {name}"), info, ttl).into())
    });
    let schedule = new_job().prop_map(|job| Command::Schedule(vec![job]));
    let park = new_job().prop_map(|job| Command::Park(vec![(job, "lost".to_owned())]));
    prop_oneof![
        4 => schedule.prop_map(Call::Command),
        1 => park.prop_map(Call::Command),
        1 => cancel.prop_map(Call::Command),
        1 => reschedule.prop_map(Call::Command),
        2 => claim.prop_map(Call::Command),
        3 => verdict().prop_map(Call::Settle),
        1 => Just(Call::Renew),
        2 => Just(Call::EndLeases),
        1 => operate.prop_map(Call::Command),
        1 => set_history.prop_map(Call::Command),
        1 => announce.prop_map(Call::Command),
        1 => (0..30_000u64).prop_map(|bytes| Call::Command(Command::SetCapacity(bytes))),
    ]
}

fn new_job() -> impl Strategy<Value = wire::NewJob> {
    let key = proptest::option::weighted(0.3, 0..4u8);
    let policy = prop_oneof![Just(OnConflict::Keep), Just(OnConflict::Replace)];
    let times = (0..2_000u64, 0..1_000u64);
    (0..IDS, 0..QUEUES, key, policy, any::<bool>(), times, any::<u16>()).prop_map(
        |(number, queue_number, key, policy, detaches, (delay, remember), text)| {
            let due = Due::After(Duration::from_millis(delay));
            let mut job =
                NewJob::new(id(number), queue(queue_number), due, text.to_string().into());
            if number % 2 == 0 {
                job.headers.insert("colour", format!("of {number}"));
            }
            if number % 3 == 0 {
                job = job.group(format!("group {}", number % 2));
            }
            job.key = key.map(|key| JobKey::new(key.to_string()).unwrap());
            job.on_conflict = policy;
            if detaches {
                job.on_running = OnRunning::Detach;
            }
            job.remember = Duration::from_millis(remember.saturating_sub(500));
            job.into()
        },
    )
}

fn verdict() -> impl Strategy<Value = Verdict> {
    let rejected = DeadReason::new(DeadKind::Rejected, "so");
    prop_oneof![
        Just(Verdict::Done),
        Just(Verdict::retry(Due::NOW, "a reason")),
        Just(Verdict::Snooze(Due::After(Duration::from_secs(1)))),
        Just(Verdict::Throttle(Due::After(Duration::from_millis(100)))),
        Just(Verdict::Release { started: false }),
        Just(Verdict::skip("another reason")),
        any::<u16>().prop_map(|step| {
            Verdict::Again { due: Due::NOW, payload: format!("step {step}").into() }
        }),
        Just(Verdict::Dead { reason: rejected, failed: true }),
    ]
}

fn flow() -> impl Strategy<Value = Flow> {
    let rate = (1..4u32, 1..4u64).prop_map(|(jobs, seconds)| {
        Rate::new(jobs, Duration::from_secs(seconds)).expect("a valid rate")
    });
    (option::of(1..3u32), option::of(1..3u32), option::of(rate)).prop_map(
        |(max_running, group_max_running, rate)| {
            let mut flow = Flow::UNLIMITED;
            flow.max_running = max_running;
            flow.group_max_running = group_max_running;
            flow.rate = rate;
            flow
        },
    )
}

fn operation() -> impl Strategy<Value = QueueOperation> {
    let jobs = || (0..IDS / 2).map(id).collect::<Vec<_>>();
    prop_oneof![
        Just(QueueOperation::Pause),
        Just(QueueOperation::Resume),
        Just(QueueOperation::Replay(jobs(), Due::NOW.into())),
        Just(QueueOperation::Remove(jobs())),
        Just(QueueOperation::Purge),
        flow().prop_map(|flow| QueueOperation::DeclareFlow(flow.into())),
        option::of(flow()).prop_map(|flow| QueueOperation::OverrideFlow(flow.map(Into::into))),
    ]
}

#[derive(Default)]
struct Simulation {
    log: TestLog,
    last_closed: Option<Generation>,
    /// Where a late message goes in the closed generation.
    late_offset: Option<u64>,
    applied: Vec<Entry>,
    /// By producer, with entries that never reached the log.
    sent: HashMap<u64, Vec<Entry>>,
    complete: BTreeSet<Generation>,
    leases: Vec<Lease>,
    now_ms: u64,
}

impl Simulation {
    fn command(&mut self, call: &Call) -> Command {
        match call {
            Call::Command(command) => command.clone(),
            Call::EndLeases => {
                let mut ends = self.log.replica.end_expired(Duration::from_millis(self.now_ms));
                ends.pop().unwrap_or(Command::EndLeases(Vec::new()))
            }
            Call::Renew => {
                let renew = |lease: &Lease| Renewal::new(lease.clone(), Duration::from_secs(1));
                Command::Renew(self.leases.iter().map(|lease| (&renew(lease)).into()).collect())
            }
            Call::Settle(verdict) => {
                let Some(lease) = self.leases.pop() else { return Command::Barrier };
                // So that the settlement is not the first of its entry.
                let lost = Lease { queue: queue(0), job: id(0), token: FencingToken(u64::MAX) };
                let settlements = [(lost, Verdict::Done), (lease, verdict.clone())]
                    .map(|(lease, verdict)| Settlement::new(lease, verdict))
                    .map(|settlement| wire::Settlement::try_from(&settlement).unwrap());
                Command::Settle(settlements.into())
            }
        }
    }

    /// Each producer's clock shows another time.
    fn entry(&mut self, producer_id: u64, command: Command) -> Entry {
        let at = Timestamp::EPOCH + Duration::from_millis(self.now_ms + 300 * producer_id);
        let sent = self.sent.entry(producer_id).or_default();
        let entry = Entry { producer_id, sequence: sent.len() as u64 + 1, at, command };
        sent.push(entry.clone());
        entry
    }

    fn entry_of(&mut self, producer_id: u64, call: &Call) -> Entry {
        let command = self.command(call);
        self.entry(producer_id, command)
    }

    fn append(&mut self, message: Vec<Entry>) {
        let (offset, generation) = (self.log.next_offset, self.log.generation());
        self.log.elapsed = Duration::from_millis(self.now_ms);
        for (entry, reply) in self.log.append(message) {
            if let CommandReply::Claimed(claimed) = reply {
                self.leases.extend(claimed.jobs.iter().map(|leased| leased.lease()));
            }
            self.applied.push(entry);
        }
        let is_closed = self.log.generation() != generation;
        if is_closed {
            self.last_closed = Some(generation);
            self.late_offset = Some(offset + 1);
        }
        if is_closed || self.log.retention.is_complete() {
            self.complete.insert(generation);
        }
    }

    fn resend(&mut self, producer_id: u64, applied: u8) {
        let last = self.log.replica.producers().last_sequence(producer_id) as usize;
        let from = last.saturating_sub(applied.into());
        let Some(sent) = self.sent.get(&producer_id) else { return };
        let resent = sent[from..].to_vec();
        if !resent.is_empty() {
            self.append(resent);
        }
    }

    fn has_unread(&self, producer_id: u64) -> bool {
        let last = self.log.replica.producers().last_sequence(producer_id);
        self.sent.get(&producer_id).is_some_and(|sent| sent.len() as u64 > last)
    }

    fn step(&mut self, producer_id: u64, step: &Step) {
        self.now_ms += 50;
        match step {
            Step::Append(call) => {
                let entry = self.entry_of(producer_id, call);
                self.append(vec![entry]);
            }
            Step::Lose(call) => drop(self.entry_of(producer_id, call)),
            Step::Resend { applied } => self.resend(producer_id, *applied),
            Step::Abandon => {
                self.log.unwritten.clear();
                // `SNAPSHOT_TIMEOUT`, so that another snapshot may begin.
                self.now_ms += 15_000;
            }
            Step::Close if !self.log.retention.is_complete() => {}
            Step::Close => {
                let close = Command::Close(self.log.generation().number());
                // The second entry has to be sent again.
                let message = [close, Command::Barrier].map(|it| self.entry(producer_id, it));
                self.append(message.into());
            }
            Step::CloseAgain => {
                let Some(before) = self.last_closed else { return };
                let entry = self.entry(producer_id, Command::Close(before.number()));
                self.append(vec![entry]);
            }
            Step::Late(call) => {
                let entry = self.entry_of(producer_id, call);
                if let Some(late) = &mut self.late_offset {
                    self.log.messages.insert(*late, vec![entry]);
                    *late += 1;
                }
            }
            Step::Snapshot if self.has_unread(producer_id) => self.resend(producer_id, 2),
            Step::Snapshot => {
                let unwritten = self.log.unwritten.entry(producer_id).or_default();
                let next = unwritten.pop_front().unwrap_or(SnapshotEntry::Begin);
                let entry = self.entry(producer_id, Command::Snapshot(next));
                self.append(vec![entry]);
            }
        }
    }

    /// Sends all that was lost. A close ends the message that resends entries.
    fn resend_all(&mut self) {
        for producer_id in 1..=PRODUCERS {
            while self.has_unread(producer_id) {
                self.resend(producer_id, 3);
            }
        }
    }
}

type Contents = (MachineSnapshot<StoredPayload>, HistoryLimits, Vec<StandingLease>);

fn contents(messages: &Messages, replica: &mut Replica) -> Contents {
    let leases = replica.leases();
    let machine = replica.machine();
    let mut state = machine.snapshot();
    let limits = machine.history_limits().clone();
    for job in &mut state.jobs {
        job.job.headers = job.stored.headers();
        job.job.payload = payload(messages, job.job.id, &job.stored.payload);
        job.stored = StoredPayload::default();
    }
    state.jobs.sort_by_key(|job| job.job.id);
    state.queues.sort_by(|a, b| a.0.cmp(&b.0));
    state.ended.sort_by_key(|(seq, _)| *seq);
    state.pins.sort_by_key(|(receipt, _)| receipt.id);
    (state, limits, leases)
}

fn read_from(messages: &Messages, mut generation: Generation) -> Replica {
    let first = generation.offset(0);
    let mut replica = Replica::starting_at(first);
    for (offset, message) in messages.range(first..) {
        if Generation::of(*offset) != generation {
            continue;
        }
        for (index, entry) in (0..).zip(message) {
            if let Applied::Deferred = replica.apply(*offset, index, entry.clone()) {
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

fn snapshot_bytes(messages: &Messages, replica: &Replica) -> u64 {
    fn sum<T: serde::Serialize>(items: &[T]) -> u64 {
        items.iter().map(wire::encoded_size).sum()
    }
    let (parts, jobs) = replica.snapshot();
    let jobs = job_parts(jobs, |id, stored| Some(payload(messages, id, stored)));
    let bytes = parts.into_iter().chain(jobs).map(|part| match part {
        SnapshotPart::Jobs(jobs) => sum(&jobs),
        SnapshotPart::Ended(jobs) => sum(&jobs),
        SnapshotPart::Pins(pins) => sum(&pins),
        SnapshotPart::Runners(runners) => sum(&runners),
        SnapshotPart::Header(_) | SnapshotPart::Leases(_) | SnapshotPart::Gates(_) => 0,
    });
    bytes.sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn replicas_are_equal_wherever_they_start_to_read(
        steps in vec((1..=PRODUCERS, step()), 1..120)
    ) {
        let mut simulation = Simulation::default();
        for (producer_id, step) in &steps {
            simulation.step(*producer_id, step);
        }
        simulation.resend_all();
        let Simulation { log: TestLog { messages, mut replica, .. }, applied, sent, complete, .. } =
            simulation;
        let expected = contents(&messages, &mut replica);
        let bytes = snapshot_bytes(&messages, &replica);
        prop_assert_eq!(replica.machine().stored_bytes(), bytes);

        for (producer_id, sent) in &sent {
            let applied = applied.iter().filter(|entry| entry.producer_id == *producer_id);
            let sequence: Vec<_> = applied.map(|entry| entry.sequence).collect();
            prop_assert_eq!(&sequence, &(1..=sent.len() as u64).collect::<Vec<_>>());
        }
        // The applied entries alone give the same state. Parts hold offsets of the original log,
        // and a close would end this log, so commands without effect replace both.
        let clean = applied.into_iter().map(|mut entry| {
            if matches!(entry.command, Command::Snapshot(_) | Command::Close(_)) {
                entry.command = Command::Renew(Vec::new());
            }
            vec![entry]
        });
        let clean: Messages = (0..).zip(clean).collect();
        let mut first = read_from(&clean, Generation::FIRST);
        prop_assert_eq!(&contents(&clean, &mut first), &expected);

        let generations: BTreeSet<_> = messages.keys().map(|offset| Generation::of(*offset)).collect();
        for first in generations {
            let mut reader = read_from(&messages, first);
            prop_assert_eq!(reader.is_ready(), complete.contains(&first), "from {:?}", first);
            if reader.is_ready() {
                prop_assert_eq!(&contents(&messages, &mut reader), &expected, "from {:?}", first);
                prop_assert_eq!(reader.producers(), replica.producers());
                prop_assert_eq!(reader.log_id(), replica.log_id());
                prop_assert_eq!(reader.machine().stored_bytes(), bytes, "from {:?}", first);
                prop_assert_eq!(reader.usage(), replica.usage());
            }
        }
    }
}
