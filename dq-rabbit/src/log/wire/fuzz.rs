//! Decoders and replica on input that no version has written.

use dq_core::Timestamp;
use dq_testkit::fuzz;
use xxhash_rust::xxh3::xxh3_64;

use super::super::state::replica::Replica;
use super::tests::{every_command, scheduling};
use super::{Entry, Message, decode, encode};

fn entries(command: super::Command) -> Vec<Entry> {
    let barrier = super::Command::Barrier;
    [(1, command), (2, barrier)]
        .map(|(sequence, command)| Entry {
            producer_id: 1,
            sequence,
            at: Timestamp::from_millis(1_000),
            command,
        })
        .into()
}

fn messages() -> Vec<Vec<u8>> {
    every_command().into_iter().map(|command| encode(&entries(command))).collect()
}

#[test]
fn messages_of_the_log() {
    fuzz::check("messages of the log", &messages(), |bytes| decode(bytes).is_ok());
}

#[test]
fn messages_of_the_log_with_the_right_checksum() {
    fuzz::check("messages of the log with the right checksum", &messages(), |bytes| {
        decode(&sealed(bytes)).is_ok()
    });
}

/// Entries that decode never stop a process, because the next one would read them too.
#[test]
fn entries_on_a_replica() {
    fuzz::check("entries on a replica", &messages(), |bytes| {
        let Ok(Message::Batch(batch)) = decode(&sealed(bytes)) else { return false };
        let mut replica = Replica::starting_at(0);
        let mut offset = 0;
        let mut apply = |replica: &mut Replica, mut entry: Entry| {
            // Otherwise most entries are duplicates or follow a gap.
            entry.producer_id = 1;
            entry.sequence = offset + 1;
            let _ = replica.apply(offset, 0, entry);
            offset += 1;
        };
        for entry in scheduling().into_iter().flat_map(entries) {
            apply(&mut replica, entry);
        }
        assert_eq!(replica.machine().len(), 2, "the mutated entries find jobs");
        for entry in batch.entries {
            apply(&mut replica, entry);
        }
        let _ = replica.snapshot();
        true
    });
}

/// With the right checksum.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let framed = &bytes[..bytes.len().saturating_sub(8)];
    [framed, &xxh3_64(framed).to_le_bytes()].concat()
}
