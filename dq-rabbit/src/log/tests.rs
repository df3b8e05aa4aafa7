//! Replicas that read the same log are equal, whatever was written twice or lost on the way.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use dq_core::machine::{MachineSnapshot, OwnedOperation};
use dq_core::{
    DeadKind, DeadReason, Due, Headers, JobId, JobKey, JobRef, Lease, NewJob, OnConflict,
    QueueName, Settlement, Timestamp, Verdict, Want,
};
use proptest::prelude::*;

use super::command::{Claiming, Entry, Naming, Piece, Settling};
use super::compact::pieces;
use super::fetch::job;
use super::replica::Applied;
use super::room::Room;
use super::{Command, Place, Replica, Reply};

const ORIGINS: u64 = 3;

/// What one of the writers does next.
#[derive(Debug, Clone)]
enum Step {
    /// Writes a call.
    Write(Call),
    /// Writes a call that is lost on its way.
    Lose(Call),
    /// Writes again what did not count so far, and some of what did.
    Rewrite { counted: u8 },
    /// Begins to copy the state, or writes one more piece of the copy.
    Copy,
}

#[derive(Debug, Clone)]
enum Call {
    Schedule { id: u8, queue: u8, key: Option<u8>, delay: u64 },
    Cancel { id: u8, queue: u8 },
    Claim { queue: u8, limit: usize },
    Settle { verdict: u8 },
    Operate { queue: u8, what: u8 },
}

fn call() -> impl Strategy<Value = Call> {
    let key = proptest::option::weighted(0.3, 0..4u8);
    prop_oneof![
        4 => (0..40u8, 0..2u8, key, 0..2_000u64)
            .prop_map(|(id, queue, key, delay)| Call::Schedule { id, queue, key, delay }),
        1 => (0..40u8, 0..2u8).prop_map(|(id, queue)| Call::Cancel { id, queue }),
        2 => (0..2u8, 1..6usize).prop_map(|(queue, limit)| Call::Claim { queue, limit }),
        2 => (0..5u8).prop_map(|verdict| Call::Settle { verdict }),
        1 => (0..2u8, 0..4u8).prop_map(|(queue, what)| Call::Operate { queue, what }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => call().prop_map(Step::Write),
        1 => call().prop_map(Step::Lose),
        2 => (0..8u8).prop_map(|counted| Step::Rewrite { counted }),
        3 => Just(Step::Copy),
    ]
}

fn queue(number: u8) -> QueueName {
    QueueName::new(format!("q{number}")).unwrap()
}

fn id(number: u8) -> JobId {
    JobId::from_bytes([number; 16])
}

/// A log, with those who write it.
struct World {
    log: Vec<Vec<Entry>>,
    /// One that reads along, and what it knows of copies.
    replica: Replica,
    room: Room,
    /// Those that counted.
    counted: Vec<Entry>,
    /// All entries of each writer.
    written: HashMap<u64, Vec<Entry>>,
    /// What each copy lacks.
    copying: HashMap<u64, VecDeque<Piece>>,
    /// Where copies that are whole were begun.
    whole: Vec<u64>,
    leases: Vec<Lease>,
    now: i64,
}

impl World {
    fn new() -> Self {
        Self {
            log: Vec::new(),
            replica: Replica::starting_at(0),
            room: Room::new(u64::MAX, 0),
            counted: Vec::new(),
            written: HashMap::new(),
            copying: HashMap::new(),
            whole: Vec::new(),
            leases: Vec::new(),
            now: 0,
        }
    }

    fn command(&mut self, call: &Call) -> Command {
        match *call {
            Call::Schedule { id: number, queue: of, key, delay } => {
                let job = NewJob {
                    id: id(number),
                    queue: queue(of),
                    key: key.map(|key| JobKey::new(key.to_string()).unwrap()),
                    on_conflict: if delay % 2 == 0 {
                        OnConflict::Keep
                    } else {
                        OnConflict::Replace
                    },
                    due: Due::After(Duration::from_millis(delay)),
                    payload: Bytes::from(format!("{number} at {}", self.now)),
                    headers: Headers::new(),
                    max_attempts: None,
                };
                Command::Schedule(vec![job.into()])
            }
            Call::Cancel { id: number, queue: of } => {
                Command::Cancel(vec![Naming::from(&JobRef::new(queue(of), id(number)))])
            }
            Call::Claim { queue: of, limit } => {
                let lease_for = Duration::from_millis(1_000);
                let wants = [Want { queue: queue(of), max: limit, lease_for }];
                Command::Claim(Claiming::new(&wants, limit, (0..20).map(id).collect()))
            }
            Call::Settle { verdict } => {
                let Some(lease) = self.leases.pop() else { return Command::Look };
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
                Command::Settle(vec![Settling::try_from(&Settlement { lease, verdict }).unwrap()])
            }
            Call::Operate { queue: of, what } => {
                let operate = match what {
                    0 => OwnedOperation::Pause,
                    1 => OwnedOperation::Resume,
                    2 => OwnedOperation::Replay { jobs: None, due: Due::NOW },
                    _ => OwnedOperation::Remove { jobs: None },
                };
                Command::Operate(queue(of), operate.into())
            }
        }
    }

    /// The next entry of this writer.
    fn entry(&mut self, origin: u64, command: Command) -> Entry {
        // Their clocks differ.
        let at = Timestamp::from_millis(self.now + 300 * origin as i64);
        let written = self.written.entry(origin).or_default();
        let entry = Entry { origin, number: written.len() as u64 + 1, at, command };
        written.push(entry.clone());
        entry
    }

    /// Puts a message into the log.
    fn append(&mut self, message: Vec<Entry>) {
        let offset = self.log.len() as u64;
        self.log.push(message.clone());
        for (index, entry) in message.into_iter().enumerate() {
            self.room.note(offset, &entry.command, 0, Timestamp::from_millis(self.now));
            let Applied::Reply(reply) = self.replica.apply(offset, index as u32, entry.clone())
            else {
                continue;
            };
            if let Reply::Claimed(claimed) = reply {
                self.leases.extend(claimed.jobs.iter().map(|leased| leased.lease()));
            }
            match entry.command {
                Command::Copy(Piece::Begin) => self.copying_begins(entry.origin, offset),
                Command::Copy(Piece::End { begin, .. }) => self.whole.push(begin),
                _ => {}
            }
            self.counted.push(entry);
        }
    }

    fn copying_begins(&mut self, origin: u64, begin: u64) {
        let (frame, jobs) = self.replica.copy(begin);
        let payloads = jobs
            .iter()
            .map(|standing| (standing.job.id, (payload(&self.log, &standing.job), Headers::new())));
        let payloads = payloads.collect();
        let count = jobs.len() as u64;
        let mut todo = VecDeque::from([frame]);
        // A job each.
        for piece in pieces(begin, jobs, payloads) {
            let Piece::Jobs(begin, jobs) = piece else { panic!("{piece:?}") };
            todo.extend(jobs.into_iter().map(|job| Piece::Jobs(begin, vec![job])));
        }
        todo.push_back(Piece::End { begin, jobs: count });
        self.copying.insert(origin, todo);
    }

    fn rewrite(&mut self, origin: u64, counted: u8) {
        let done = self.replica.origins.get(&origin).map_or(0, |(number, _)| *number as usize);
        let from = done.saturating_sub(counted.into());
        let Some(written) = self.written.get(&origin) else { return };
        let again = written[from..].to_vec();
        if !again.is_empty() {
            self.append(again);
        }
    }

    fn step(&mut self, origin: u64, step: &Step) {
        self.now += 50;
        match step {
            Step::Write(call) => {
                let command = self.command(call);
                let entry = self.entry(origin, command);
                self.append(vec![entry]);
            }
            Step::Lose(call) => {
                let command = self.command(call);
                self.entry(origin, command);
            }
            Step::Rewrite { counted } => self.rewrite(origin, *counted),
            Step::Copy => {
                // Whoever copies waits for each piece to count before it writes the next.
                let done = self.replica.origins.get(&origin).map_or(0, |(number, _)| *number);
                if self.written.get(&origin).is_some_and(|all| all.len() as u64 > done) {
                    return self.rewrite(origin, 2);
                }
                let piece = self.copying.entry(origin).or_default().pop_front();
                let entry = self.entry(origin, Command::Copy(piece.unwrap_or(Piece::Begin)));
                self.append(vec![entry]);
            }
        }
    }
}

/// What stands where a job of a replica says that its payload is.
fn payload(log: &[Vec<Entry>], of: &dq_core::Job) -> Bytes {
    let place = Place::of(of);
    let found = job(&log[place.offset as usize][place.entry as usize], place);
    let found = found.unwrap_or_else(|| panic!("no payload at {place:?}"));
    assert_eq!(found.id, of.id);
    found.payload.clone()
}

/// All that can be told of a replica, with its payloads.
fn contents(log: &[Vec<Entry>], replica: &Replica) -> MachineSnapshot {
    let mut copy = replica.machine.snapshot();
    for standing in &mut copy.jobs {
        standing.job.payload = payload(log, &standing.job);
    }
    copy.jobs.sort_by_key(|standing| standing.job.id);
    copy.queues.sort_by(|a, b| a.0.cmp(&b.0));
    copy
}

/// Reads the log from there on.
fn read_from(log: &[Vec<Entry>], first: usize) -> Replica {
    let mut replica = Replica::starting_at(first as u64);
    for (offset, message) in log.iter().enumerate().skip(first) {
        for (index, entry) in message.iter().enumerate() {
            if let Applied::Later = replica.apply(offset as u64, index as u32, entry.clone()) {
                for (offset, index, entry) in replica.found() {
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
    fn a_replica_is_what_the_entries_that_count_make_it(
        steps in proptest::collection::vec((1..=ORIGINS, step()), 1..120)
    ) {
        let mut world = World::new();
        for (origin, step) in &steps {
            world.step(*origin, step);
        }
        (1..=ORIGINS).for_each(|origin| world.rewrite(origin, 3));
        let World { log, replica, room, counted, written, whole, .. } = world;
        let all = contents(&log, &replica);

        // Each call counts once, in order, and nothing else does.
        for (origin, written) in &written {
            let counted = counted.iter().filter(|entry| entry.origin == *origin);
            let numbers: Vec<_> = counted.map(|entry| entry.number).collect();
            prop_assert_eq!(&numbers, &(1..=written.len() as u64).collect::<Vec<_>>());
        }
        // Copies name offsets of the other log; they have no part in what the calls come to.
        let is_copy = |entry: &Entry| matches!(entry.command, Command::Copy(_));
        let clean = counted.into_iter().map(|entry| match is_copy(&entry) {
            true => vec![Entry { command: Command::Renew(Vec::new()), ..entry }],
            false => vec![entry],
        });
        let clean: Vec<_> = clean.collect();
        prop_assert_eq!(&contents(&clean, &read_from(&clean, 0)), &all);

        let since = room.since().expect("it has read all");
        prop_assert!(since == 0 || whole.contains(&since), "{} is no copy", since);

        for first in 0..log.len() {
            let reader = read_from(&log, first);
            let known = first == 0 || whole.iter().any(|begin| *begin >= first as u64);
            prop_assert_eq!(reader.is_founded(), known, "from {} on", first);
            if known {
                prop_assert_eq!(contents(&log, &reader), all.clone(), "from {} on", first);
                prop_assert_eq!(&reader.origins, &replica.origins);
                prop_assert_eq!(reader.epoch(), replica.epoch());
            }
        }
    }
}
