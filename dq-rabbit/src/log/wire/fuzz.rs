//! Decoders and the replica read input that no version has written.

use dq_core::Timestamp;
use dq_testkit::fuzz;

use super::super::state::replica::Replica;
use super::tests::{every_command, scheduling, sealed};
use super::{Command, Entry, Message, decode, encode};

fn entries(command: Command) -> [Entry; 2] {
    let at = Timestamp::from_millis(1_000);
    [(1, command), (2, Command::Barrier)].map(|(sequence, command)| Entry {
        producer_id: 1,
        sequence,
        at,
        command,
    })
}

fn messages() -> Vec<Vec<u8>> {
    every_command().into_iter().map(|command| encode(&entries(command))).collect()
}

fn resealed(message: &[u8]) -> Vec<u8> {
    sealed(message[..message.len().saturating_sub(8)].to_vec())
}

#[test]
fn messages_of_the_log() {
    fuzz::check("messages of the log", &messages(), |bytes| decode(bytes).is_ok());
    fuzz::check("messages with the right checksum", &messages(), |bytes| {
        decode(&resealed(bytes)).is_ok()
    });
}

/// Entries that decode never stop a process, because the next one would read them too.
#[test]
fn entries_on_a_replica() {
    fuzz::check("entries on a replica", &messages(), |bytes| {
        let Ok(Message::Entries(mutated)) = decode(&resealed(bytes)) else { return false };
        let mut replica = Replica::starting_at(0);
        let scheduled = scheduling().into_iter().flat_map(entries);
        let jobs_are_scheduled = scheduling().len() as u64 * 2;
        for (offset, mut entry) in (0..).zip(scheduled.chain(mutated)) {
            if offset == jobs_are_scheduled {
                assert_eq!(replica.machine().len(), 2, "the mutated entries find jobs");
            }
            // Otherwise most entries are duplicates or follow a gap.
            (entry.producer_id, entry.sequence) = (1, offset + 1);
            let _ = replica.apply(offset, 0, entry);
        }
        let _ = replica.snapshot();
        true
    });
}
