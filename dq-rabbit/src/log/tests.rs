//! Replicas that read the same log are equal, whatever was duplicated or lost on the way to it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use dq_core::machine::{MachineSnapshot, OwnedOperation};
use dq_core::{
    DeadKind, DeadReason, Due, Headers, JobId, JobKey, JobRef, Lease, NewJob, OnConflict,
    QueueName, Settlement, Timestamp, Verdict, Want,
};
use proptest::prelude::*;

use super::command::CommandReply;
use super::position::LogPosition;
use super::replica::{Applied, Replica};
use super::retention::Retention;
use super::snapshot::job_parts;
use super::wire::{self, Command, Entry, SnapshotPart};

const PRODUCERS: u64 = 3;

/// What one of the producers does next.
#[derive(Debug, Clone)]
enum Step {
    /// Appends a call.
    Append(Call),
    /// Sends a call that is lost.
    Lose(Call),
    /// Appends all entries again that had no effect so far, and as many as `applied` of those that
    /// had.
    Resend { applied: u8 },
    /// Begins a snapshot, or appends its next part.
    Snapshot,
}

#[derive(Debug, Clone)]
enum Call {
    Schedule { id: u8, queue: u8, key: Option<u8>, delay: u64 },
    Cancel { id: u8, queue: u8 },
    Claim { queue: u8, limit: usize },
    Settle { verdict: u8 },
    Operate { queue: u8, operation: u8 },
}

fn call() -> impl Strategy<Value = Call> {
    let key = proptest::option::weighted(0.3, 0..4u8);
    prop_oneof![
        4 => (0..40u8, 0..2u8, key, 0..2_000u64)
            .prop_map(|(id, queue, key, delay)| Call::Schedule { id, queue, key, delay }),
        1 => (0..40u8, 0..2u8).prop_map(|(id, queue)| Call::Cancel { id, queue }),
        2 => (0..2u8, 1..6usize).prop_map(|(queue, limit)| Call::Claim { queue, limit }),
        2 => (0..5u8).prop_map(|verdict| Call::Settle { verdict }),
        1 => (0..2u8, 0..4u8).prop_map(|(queue, operation)| Call::Operate { queue, operation }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => call().prop_map(Step::Append),
        1 => call().prop_map(Step::Lose),
        2 => (0..8u8).prop_map(|applied| Step::Resend { applied }),
        3 => Just(Step::Snapshot),
    ]
}

fn queue(number: u8) -> QueueName {
    QueueName::new(format!("q{number}")).unwrap()
}

fn id(number: u8) -> JobId {
    JobId::from_bytes([number; 16])
}

/// A log, its producers, and a replica that has applied all of it.
struct Simulation {
    /// The messages of the log, by offset.
    log: Vec<Vec<Entry>>,
    /// Applies each message as it is appended.
    replica: Replica,
    retention: Retention,
    /// Entries that took effect.
    applied: Vec<Entry>,
    /// All entries of each producer, including those that were lost on the way to the log.
    sent: HashMap<u64, Vec<Entry>>,
    /// By producer: the parts of its snapshot that are still to be appended.
    missing_parts: HashMap<u64, VecDeque<SnapshotPart>>,
    /// Offsets at which complete snapshots begin.
    snapshots: Vec<u64>,
    leases: Vec<Lease>,
    now: i64,
}

impl Simulation {
    fn new() -> Self {
        Self {
            log: Vec::new(),
            replica: Replica::starting_at(0),
            retention: Retention::starting_at(u64::MAX, 0),
            applied: Vec::new(),
            sent: HashMap::new(),
            missing_parts: HashMap::new(),
            snapshots: Vec::new(),
            leases: Vec::new(),
            now: 0,
        }
    }

    /// The command of a call, at the current time.
    fn command(&mut self, call: &Call) -> Command {
        match *call {
            Call::Schedule { id: number, queue: queue_number, key, delay } => {
                let due = Due::After(Duration::from_millis(delay));
                let payload = format!("{number} at {}", self.now);
                let mut job = NewJob::new(id(number), queue(queue_number), due, payload.into());
                job.key = key.map(|key| JobKey::new(key.to_string()).unwrap());
                job.on_conflict =
                    if delay % 2 == 0 { OnConflict::Keep } else { OnConflict::Replace };
                Command::Schedule(vec![job.into()])
            }
            Call::Cancel { id: number, queue: queue_number } => {
                Command::Cancel(vec![(&JobRef::new(queue(queue_number), id(number))).into()])
            }
            Call::Claim { queue: queue_number, limit } => {
                let lease_for = Duration::from_millis(1_000);
                let wants = [Want { queue: queue(queue_number), max: limit, lease_for }];
                // Half of the ids that `call` makes count as prefetched by the claimer.
                let prefetched = (0..20).map(id).collect();
                Command::Claim(wire::Claim::new(&wants, limit, prefetched))
            }
            Call::Settle { verdict } => {
                let Some(lease) = self.leases.pop() else { return Command::Barrier };
                let verdict = match verdict {
                    0 => Verdict::Done,
                    1 => Verdict::Retry(Due::NOW),
                    2 => Verdict::Snooze(Due::After(Duration::from_secs(1))),
                    3 => Verdict::Release { started: false },
                    _ => Verdict::Dead {
                        reason: DeadReason::new(DeadKind::Rejected, "so"),
                        failed: true,
                    },
                };
                let settlement = wire::Settlement::try_from(&Settlement { lease, verdict });
                Command::Settle(vec![settlement.unwrap()])
            }
            Call::Operate { queue: queue_number, operation } => {
                let operation = match operation {
                    0 => OwnedOperation::Pause,
                    1 => OwnedOperation::Resume,
                    2 => OwnedOperation::Replay { jobs: None, due: Due::NOW },
                    _ => OwnedOperation::Remove { jobs: None },
                };
                Command::Operate(queue(queue_number), operation.into())
            }
        }
    }

    /// The next entry of this producer.
    fn entry(&mut self, producer_id: u64, command: Command) -> Entry {
        // Clocks of producers differ.
        let at = Timestamp::from_millis(self.now + 300 * producer_id as i64);
        let sent = self.sent.entry(producer_id).or_default();
        let entry = Entry { producer_id, sequence: sent.len() as u64 + 1, at, command };
        sent.push(entry.clone());
        entry
    }

    fn append(&mut self, message: Vec<Entry>) {
        let offset = self.log.len() as u64;
        self.log.push(message.clone());
        for (index, entry) in message.into_iter().enumerate() {
            self.retention.observe(offset, &entry.command, 0, Timestamp::from_millis(self.now));
            let Applied::Reply(reply) = self.replica.apply(offset, index as u32, entry.clone())
            else {
                continue;
            };
            if let CommandReply::Claimed(claimed) = reply {
                self.leases.extend(claimed.jobs.iter().map(|leased| leased.lease()));
            }
            match entry.command {
                Command::Snapshot(SnapshotPart::Begin) => {
                    self.begin_snapshot(entry.producer_id, offset);
                }
                Command::Snapshot(SnapshotPart::End { begin, .. }) => self.snapshots.push(begin),
                _ => {}
            }
            self.applied.push(entry);
        }
    }

    /// Prepares the parts of a snapshot whose `Begin` this producer has read back.
    fn begin_snapshot(&mut self, producer_id: u64, begin: u64) {
        let (header, jobs) = self.replica.snapshot(begin);
        let payloads =
            jobs.iter().map(|job| (job.job.id, (payload(&self.log, &job.job), Headers::new())));
        let payloads = payloads.collect();
        let count = jobs.len() as u64;
        let mut parts = VecDeque::from([header]);
        // One job per part.
        for part in job_parts(begin, jobs, payloads) {
            let SnapshotPart::Jobs(begin, jobs) = part else { panic!("{part:?}") };
            parts.extend(jobs.into_iter().map(|job| SnapshotPart::Jobs(begin, vec![job])));
        }
        parts.push_back(SnapshotPart::End { begin, jobs: count });
        self.missing_parts.insert(producer_id, parts);
    }

    /// Appends all entries of this producer again that had no effect, and some of those that had.
    fn resend(&mut self, producer_id: u64, applied: u8) {
        let last = self.replica.producers().last_sequence(producer_id) as usize;
        let from = last.saturating_sub(applied.into());
        let Some(sent) = self.sent.get(&producer_id) else { return };
        let resent = sent[from..].to_vec();
        if !resent.is_empty() {
            self.append(resent);
        }
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
            Step::Snapshot => {
                // The next part is sent after the one before has taken effect.
                let last = self.replica.producers().last_sequence(producer_id);
                if self.sent.get(&producer_id).is_some_and(|sent| sent.len() as u64 > last) {
                    return self.resend(producer_id, 2);
                }
                let part = self.missing_parts.entry(producer_id).or_default().pop_front();
                let part = part.unwrap_or(SnapshotPart::Begin);
                let entry = self.entry(producer_id, Command::Snapshot(part));
                self.append(vec![entry]);
            }
        }
    }
}

/// The payload at the position that a job of a replica holds.
fn payload(log: &[Vec<Entry>], replica_job: &dq_core::Job) -> Bytes {
    let position = LogPosition::of(replica_job);
    let entry = &log[position.offset as usize][position.entry as usize];
    let job = entry.command.job(position.job);
    let job = job.unwrap_or_else(|| panic!("no payload at {position:?}"));
    assert_eq!(job.id, replica_job.id);
    job.payload.clone()
}

/// The whole state of a replica, with payloads in place of their positions.
fn contents(log: &[Vec<Entry>], replica: &mut Replica) -> MachineSnapshot {
    let mut state = replica.machine().snapshot();
    for job in &mut state.jobs {
        job.job.payload = payload(log, &job.job);
    }
    state.jobs.sort_by_key(|job| job.job.id);
    state.queues.sort_by(|a, b| a.0.cmp(&b.0));
    state
}

/// A replica that has read the log from this offset on.
fn read_from(log: &[Vec<Entry>], first: usize) -> Replica {
    let mut replica = Replica::starting_at(first as u64);
    for (offset, message) in log.iter().enumerate().skip(first) {
        for (index, entry) in message.iter().enumerate() {
            if let Applied::Deferred = replica.apply(offset as u64, index as u32, entry.clone()) {
                for (offset, index, entry) in replica.restore() {
                    replica.apply(offset, index, entry);
                }
            }
        }
    }
    replica
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
        (1..=PRODUCERS).for_each(|producer_id| simulation.resend(producer_id, 3));
        let Simulation { log, mut replica, retention, applied, sent, snapshots, .. } = simulation;
        let expected = contents(&log, &mut replica);

        // Each entry takes effect once, in order.
        for (producer_id, sent) in &sent {
            let applied = applied.iter().filter(|entry| entry.producer_id == *producer_id);
            let sequence: Vec<_> = applied.map(|entry| entry.sequence).collect();
            prop_assert_eq!(&sequence, &(1..=sent.len() as u64).collect::<Vec<_>>());
        }
        // A log of the applied entries alone gives the same state. Its snapshot parts are replaced
        // by commands without effect, since they hold offsets of the original log.
        let clean = applied.into_iter().map(|entry| match &entry.command {
            Command::Snapshot(_) => vec![Entry { command: Command::Renew(Vec::new()), ..entry }],
            _ => vec![entry],
        });
        let clean: Vec<_> = clean.collect();
        prop_assert_eq!(&contents(&clean, &mut read_from(&clean, 0)), &expected);

        let replay_from = retention.replay_from().expect("the log was read from its beginning");
        prop_assert!(
            replay_from == 0 || snapshots.contains(&replay_from),
            "no snapshot begins at {}", replay_from
        );

        for first in 0..log.len() {
            let mut reader = read_from(&log, first);
            let is_ready = first == 0 || snapshots.iter().any(|begin| *begin >= first as u64);
            prop_assert_eq!(reader.is_ready(), is_ready, "from offset {}", first);
            if is_ready {
                let state = contents(&log, &mut reader);
                prop_assert_eq!(&state, &expected, "from offset {}", first);
                prop_assert_eq!(reader.producers(), replica.producers());
                prop_assert_eq!(reader.log_id(), replica.log_id());
            }
        }
    }
}
