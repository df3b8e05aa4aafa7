//! A log in memory, and the process that reads and writes it, for tests without a broker.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use dq_core::{JobId, QueueName, Timestamp};

use super::replica::{Applied, Replica};
use super::snapshot::job_parts;
use super::stored::PayloadRef;
use crate::log::generation::Generation;
use crate::log::generation::retention::{Retention, SnapshotStep};
use crate::log::reply::CommandReply;
use crate::log::wire::{Command, Entry, SnapshotEntry, encode};

pub(super) type Messages = BTreeMap<u64, Vec<Entry>>;

pub(super) struct TestLog {
    pub(super) messages: Messages,
    pub(super) next_offset: u64,
    pub(super) replica: Replica,
    pub(super) retention: Retention,
    pub(super) elapsed: Duration,
    pub(super) unwritten: HashMap<u64, VecDeque<SnapshotEntry>>,
}

impl Default for TestLog {
    fn default() -> Self {
        Self {
            messages: Messages::new(),
            next_offset: 0,
            replica: Replica::starting_at(0),
            retention: Retention::new(u64::MAX, true, Duration::ZERO),
            elapsed: Duration::ZERO,
            unwritten: HashMap::new(),
        }
    }
}

impl TestLog {
    pub(super) fn generation(&self) -> Generation {
        Generation::of(self.next_offset)
    }

    /// Appends a message and applies its entries, up to one that closes the generation. Returns the
    /// entries that take effect, with their replies.
    pub(super) fn append(&mut self, message: Vec<Entry>) -> Vec<(Entry, CommandReply)> {
        let (offset, generation) = (self.next_offset, self.generation());
        self.next_offset += 1;
        self.messages.insert(offset, message.clone());
        self.retention.add_message(encode(&message).len() as u64);
        self.replica.set_seen(self.elapsed);
        let mut applied = Vec::new();
        for (index, entry) in (0..).zip(message) {
            self.retention.add_entry(&entry.command);
            let Applied::Reply(reply) = self.replica.apply(offset, index, entry.clone()) else {
                continue;
            };
            if let Some(step) = SnapshotStep::of(&entry.command) {
                self.observe_snapshot(offset, entry.producer_id, step);
            }
            let closes = matches!(entry.command, Command::Close(n) if n == generation.number());
            assert_eq!(self.replica.is_closed(), closes, "at {offset}: {entry:?}");
            applied.push((entry, reply));
            if closes {
                self.next_offset = generation.next().offset(0);
                self.retention = Retention::new(u64::MAX, false, self.elapsed);
                self.replica.begin_generation();
                break;
            }
        }
        applied
    }

    fn observe_snapshot(&mut self, offset: u64, producer_id: u64, step: SnapshotStep) {
        self.retention.observe(offset, step, self.elapsed);
        if matches!(step, SnapshotStep::Begin) && self.retention.is_in_progress(offset) {
            self.unwritten.insert(producer_id, self.snapshot_entries(offset));
        }
    }

    /// Each job is a part of its own.
    fn snapshot_entries(&self, begin: u64) -> VecDeque<SnapshotEntry> {
        let (mut parts, jobs) = self.replica.snapshot();
        for job in jobs {
            parts.extend(job_parts(vec![job], |id, stored| {
                Some(payload(&self.messages, id, stored))
            }));
        }
        let end = SnapshotEntry::End { begin, parts: parts.len() as u32 };
        let part = |(number, part)| SnapshotEntry::Part { begin, number, part };
        (0..).zip(parts).map(part).chain([end]).collect()
    }

    pub(super) fn call(&mut self, command: Command) -> CommandReply {
        self.call_at(0, command)
    }

    pub(super) fn call_at(&mut self, at: i64, command: Command) -> CommandReply {
        let sequence = self.replica.producers().last_sequence(1) + 1;
        let at = Timestamp::from_millis(at);
        let applied = self.append(vec![Entry { producer_id: 1, sequence, at, command }]);
        applied.into_iter().next().expect("the entry takes effect").1
    }

    /// Returns the offset of the snapshot's `Begin`.
    pub(super) fn write_snapshot(&mut self) -> u64 {
        let begin = self.next_offset;
        self.call(Command::Snapshot(SnapshotEntry::Begin));
        for entry in self.unwritten.remove(&1).expect("the snapshot is in progress") {
            self.call(Command::Snapshot(entry));
        }
        begin
    }
}

pub(super) fn queue(number: u8) -> QueueName {
    QueueName::new(format!("q{number}")).unwrap()
}

pub(super) fn id(number: u8) -> JobId {
    JobId::from_bytes([number; 16])
}

pub(super) fn payload(messages: &Messages, job: JobId, stored: &PayloadRef) -> Bytes {
    let position = stored.position;
    let entry = &messages[&position.offset][position.entry as usize];
    let found = entry.command.payload(position.job);
    let (id, payload) = found.unwrap_or_else(|| panic!("no payload at {position:?}"));
    assert_eq!(id, job);
    assert!(stored.is_of(payload));
    assert_eq!(stored.length as usize, payload.len());
    payload.clone()
}
