//! A log written once must always lead to the same states: processes of two versions that read it
//! side by side would disagree otherwise.

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use super::snapshot::job_parts;
use super::test_log::{TestLog, payload};
use crate::log::wire::{SnapshotPart, decode};

/// Each line has a message, and the hash of the state after it. Written at format 1 by 400 random
/// steps of the simulation in [`tests`](super::tests). Keep it. Where a command must lead to
/// another state, it needs a new kind; a field that later snapshots add is left out of the hash.
const LOG: &str = include_str!("../../../tests/fixtures/log-1.txt");

#[test]
fn each_message_leads_to_the_state_that_it_led_to() {
    let mut log = TestLog::default();
    assert_eq!(LOG.lines().count(), 299);
    for (number, line) in (1..).zip(LOG.lines()) {
        let (message, expected) = line.split_once(' ').unwrap();
        let message = decode(&from_hex(message)).unwrap().into_entries().unwrap();
        log.append(message.clone());
        assert_eq!(hash_of_state(&log), expected, "after line {number}: {message:?}");
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Hashes what a snapshot has, in whatever order.
fn hash_of_state(log: &TestLog) -> String {
    fn sum<T: Serialize>(items: &[T]) -> u64 {
        let hash = |item| xxh3_64(&postcard::to_allocvec(item).unwrap());
        items.iter().map(hash).fold(0, u64::wrapping_add)
    }
    let (parts, jobs) = log.replica.snapshot();
    let jobs = job_parts(jobs, |id, stored| Some(payload(&log.messages, id, stored)));
    let hashes = parts.into_iter().chain(jobs).map(|part| match part {
        SnapshotPart::Header(mut header) => {
            header.producers.sort();
            header.queues.sort();
            sum(&[header])
        }
        SnapshotPart::Jobs(jobs) => sum(&jobs),
        SnapshotPart::Ended(jobs) => sum(&jobs),
        SnapshotPart::Pins(pins) => sum(&pins),
        SnapshotPart::Runners(runners) => sum(&runners),
        SnapshotPart::Leases(leases) => sum(&leases),
        SnapshotPart::Gates(gates) => sum(&gates),
    });
    format!("{:016x}", hashes.fold(0, u64::wrapping_add))
}
