//! Format 1, byte by byte. It must never change.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    DeadKind, DeadReason, Ending, JobId, JobKey, OnConflict, OnRunning, QueueName, Timestamp,
};
use xxhash_rust::xxh3::xxh3_64;

use super::entry::{
    Announcement, Due, Flow, HistoryLimit, Job, JobNotes, Lease, QueueOperation, Renewal,
    Reschedule, Target, Verdict,
};
use super::*;

/// All fields that a job can have.
fn job() -> NewJob {
    let mut job = plain_job(OnConflict::Latest);
    job.id = id(1);
    job.key = Some(key());
    job.on_running = OnRunning::Detach;
    job.due = Due::At(Timestamp::from_millis(1_000));
    job.max_attempts = Some(300);
    job.remember = 60_000;
    job.payload = payload();
    job.headers.insert("colour", "red");
    job
}

fn plain_job(on_conflict: OnConflict) -> NewJob {
    let due = dq_core::Due::After(Duration::from_millis(200));
    let job = dq_core::NewJob::new(id(2), queue(), due, Bytes::new());
    NewJob { on_conflict, ..job.into() }
}

fn id(number: u8) -> JobId {
    JobId::from_bytes([number; 16])
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn key() -> JobKey {
    JobKey::new("k").unwrap()
}

fn payload() -> Payload {
    Bytes::from_static(b"payload").into()
}

fn lease() -> Lease {
    Lease(queue(), id(3), 400)
}

fn standing_lease() -> StandingLease {
    StandingLease { queue: queue(), job: id(3), token: 400, renewals: 500, lease_for: 30_000 }
}

fn stored_job() -> Job {
    let [due, created] = [700, -5].map(Timestamp::from_millis);
    let mut job = dq_core::Job::new(id(9), queue(), due, created, Bytes::new());
    [job.attempts, job.deliveries, job.losses] = [1, 2, 300];
    (&job).into()
}

fn full_stored_job(first_due: i64) -> Job {
    let first_due = Some(Timestamp::from_millis(first_due));
    Job { key: Some(key()), first_due, max_attempts: Some(300), ..stored_job() }
}

fn snapshot_job(state: SnapshotJobState) -> SnapshotJob {
    let (job, headers) = (stored_job(), plain_job(OnConflict::Keep).headers);
    SnapshotJob { job, seq: 400, state, notes: None, payload: payload(), headers }
}

fn full_snapshot_job(state: SnapshotJobState) -> SnapshotJob {
    let notes = JobNotes {
        last_error: Some("why".to_owned()),
        worker: Some("worker".to_owned()),
        leased_since: Some(Timestamp::from_millis(700)),
        remember: 60_000,
    };
    let (job, headers) = (full_stored_job(700), job().headers);
    SnapshotJob { job, notes: Some(notes), headers, ..snapshot_job(state) }
}

fn claim() -> Claim {
    Claim {
        worker: "worker".to_owned(),
        wants: vec![(queue(), 10, 30_000)],
        limit: 200,
        prefetched: vec![id(5)],
    }
}

fn flow() -> Flow {
    Flow { max_running: Some(3), group_max_running: Some(2), rate: Some((10, 1_000_000_000, 20)) }
}

fn part(part: SnapshotPart) -> Command {
    Command::Snapshot(SnapshotEntry::Part { begin: 300, number: 1, part })
}

/// At least one command of each kind, with all variants of its fields.
pub(super) fn every_command() -> Vec<Command> {
    let at = Timestamp::from_millis(700);
    let policies = [OnConflict::Keep, OnConflict::Replace, OnConflict::Earliest];
    let by = |target| JobRef(queue(), target);
    let operate = |operation| Command::Operate(queue(), operation);
    let reason = DeadReason::new(DeadKind::Exhausted, "so");
    let info = Bytes::from_static(b"{}");
    let verdicts = [
        Verdict::Done,
        Verdict::Skip("why".to_owned()),
        Verdict::Retry(Due::After(1), "why".to_owned()),
        Verdict::Again(Due::At(at), payload()),
        Verdict::Snooze(Due::At(at)),
        Verdict::Dead { kind: "rejected".into(), message: "so".into(), failed: true },
        Verdict::Release { started: true },
        Verdict::Throttle(Due::After(1)),
    ];
    let limits = || HistoryLimits {
        default: HistoryLimit(1_000, 86_400_000),
        queues: vec![(queue(), HistoryLimit(0, 0))],
    };
    let header = SnapshotHeader {
        log_id: 301,
        last_seq: 302,
        last_token: 303,
        last_ended: 304,
        producers: vec![(305, 306, 307)],
        queues: vec![(queue(), true, [1, 2, 3, 4, 5, 600])],
        history: limits(),
        capacity: Some(308),
    };
    let gate = Gate {
        queue: queue(),
        declared: flow(),
        overriding: Some(Flow { max_running: None, group_max_running: None, rate: None }),
        used: 300,
        closed_until: Some(at),
    };
    let ended_job = EndedJob {
        seq: 600,
        job: full_stored_job(600),
        leased_since: Some(Timestamp::from_millis(800)),
        worker: Some("worker".to_owned()),
        last_error: None,
        ending: Ending::Done,
        reason: Some("so".to_owned()),
        at: Timestamp::from_millis(900),
    };
    vec![
        Command::Barrier,
        Command::Schedule(vec![job()]),
        Command::Schedule(policies.map(plain_job).into()),
        Command::Cancel(vec![by(Target::Id(id(4))), by(Target::Key(key()))]),
        Command::Reschedule(vec![Reschedule(by(Target::Id(id(4))), Due::After(300))]),
        Command::Claim(claim()),
        Command::ClaimLimited(claim(), vec![7]),
        Command::Settle(verdicts.map(|verdict| Settlement(lease(), verdict)).into()),
        Command::Renew(vec![Renewal(lease(), 30_000)]),
        Command::EndLeases(vec![standing_lease()]),
        operate(QueueOperation::Replay(vec![id(6)], Due::At(at))),
        operate(QueueOperation::Remove(vec![id(6)])),
        operate(QueueOperation::Pause),
        operate(QueueOperation::Resume),
        operate(QueueOperation::Purge),
        operate(QueueOperation::DeclareFlow(flow())),
        operate(QueueOperation::OverrideFlow(None)),
        Command::Park(vec![(plain_job(OnConflict::Keep), "why".to_owned())]),
        Command::SetHistory(limits()),
        Command::SetCapacity(300),
        Command::Announce(Announcement("runner".to_owned(), info.clone(), 45_000)),
        Command::Close(301),
        Command::Snapshot(SnapshotEntry::Begin),
        part(SnapshotPart::Header(Box::new(header))),
        part(SnapshotPart::Jobs(vec![
            snapshot_job(SnapshotJobState::Waiting),
            full_snapshot_job(SnapshotJobState::Leased(500, at)),
        ])),
        part(SnapshotPart::Jobs(vec![snapshot_job(SnapshotJobState::Dead(reason, at))])),
        part(SnapshotPart::Ended(vec![ended_job])),
        part(SnapshotPart::Pins(vec![(id(8), at, at)])),
        part(SnapshotPart::Runners(vec![("runner".to_owned(), info, at, at)])),
        part(SnapshotPart::Leases(vec![standing_lease()])),
        part(SnapshotPart::Gates(vec![gate])),
        Command::Snapshot(SnapshotEntry::End { begin: 300, parts: 400 }),
    ]
}

/// The kind and body of each [command](every_command). Integers are varints; signed ones are
/// zigzag-encoded.
const BODIES: &str = "\
0
1 011001010101010101010101010101010101017101016b030100d00f01ac02e0d403077061796c6f61647b8d\
    2d5bf061fe320106636f6c6f757203726564
1 031002020202020202020202020202020202017100000001c801000000c294d3380580062d00100202020202\
    0202020202020202020202017100010001c801000000c294d3380580062d001002020202020202020202020202\
    020202017100020001c801000000c294d3380580062d00
2 020171001004040404040404040404040404040404017101016b
3 01017100100404040404040404040404040404040401ac02
4 06776f726b65720101710ab0ea01c801011005050505050505050505050505050505
15 06776f726b65720101710ab0ea01c8010110050505050505050505050505050505050107
5 0801711003030303030303030303030303030303900300017110030303030303030303030303030303039003\
    010377687901711003030303030303030303030303030303900302010103776879017110030303030303030303\
    0303030303030390030300f80a077061796c6f61647b8d2d5bf061fe3201711003030303030303030303030303\
    03030390030400f80a017110030303030303030303030303030303039003050872656a656374656402736f0101\
    711003030303030303030303030303030303900306010171100303030303030303030303030303030390030701\
    01
6 01017110030303030303030303030303030303039003b0ea01
7 01017110030303030303030303030303030303039003f403b0ea01
8 01710001100606060606060606060606060606060600f80a
8 017101011006060606060606060606060606060606
8 017102
8 017103
8 017104
8 01710501030102010a8094ebdc0314
8 01710600
9 011002020202020202020202020202020202017100000001c801000000c294d3380580062d0003776879
10 e80780b899290101710000
11 ac02
12 0672756e6e6572027b7dc8df02
13 ad02
14 00
14 01ac020100ad02ae02af02b00201b102b202b302010171010102030405d804e80780b89929010171000001b\
    402
14 01ac020101021009090909090909090909090909090909017100f80a0009000102ac0290030000077061796\
    c6f61647b8d2d5bf061fe32001009090909090909090909090909090909017101016bf80a01f80a0901ac02010\
    2ac02900301f403f80a0101037768790106776f726b657201f80ae0d403077061796c6f61647b8d2d5bf061fe3\
    20106636f6c6f757203726564
14 01ac020101011009090909090909090909090909090909017100f80a0009000102ac029003020002736ff80\
    a00077061796c6f61647b8d2d5bf061fe3200
14 01ac02010201d8041009090909090909090909090909090909017101016bf80a01b0090901ac020102ac020\
    1c00c0106776f726b657200000102736f880e
14 01ac020103011008080808080808080808080808080808f80af80a
14 01ac020104010672756e6e6572027b7df80af80a
14 01ac02010501017110030303030303030303030303030303039003f403b0ea01
14 01ac02010601017101030102010a8094ebdc031401000000d80401f80a
14 02ac029003";

pub(super) fn scheduling() -> Vec<Command> {
    vec![Command::Schedule(vec![job()]), Command::Schedule(vec![plain_job(OnConflict::Keep)])]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn entry(command: Command) -> Entry {
    Entry { producer_id: 1_000, sequence: 2, at: Timestamp::from_millis(-3), command }
}

fn entries(message: &[u8]) -> Vec<Entry> {
    decode(message).unwrap().into_entries().expect("a message of this format")
}

/// Magic `6471`, format `01`, the number of entries. Each entry: kind, flags, producer id (`e807`),
/// sequence number (`02`), time (`05` is -3), length and body. The checksum has eight bytes.
#[test]
fn the_bytes_of_format_1_stay_the_same() {
    let mut bodies = Vec::new();
    for command in every_command() {
        let body = format!("{} {}", command.kind(), hex(&command.encode_body()));
        bodies.push(body.trim_end().to_owned());
        let message = encode(&[entry(command)]);
        assert_eq!(encode(&entries(&message)), message);
    }
    assert!(bodies.iter().eq(BODIES.lines()), "{}", bodies.join("\n"));

    let remove = Command::Operate(queue(), QueueOperation::Remove(Vec::new()));
    let announce = Command::Announce(Announcement("r".to_owned(), Bytes::from_static(b"{}"), 5));
    let frame = "647101020801e807020504017101000c00e8070205060172027b7d05a36b94acacfa9592";
    assert_eq!(hex(&encode(&[remove, announce].map(entry))), frame);
    assert_eq!(hex(&encode(&[])), "64710100014e7ac6bdff2c63");
}

#[test]
fn types_of_dq_core_keep_their_numbers() {
    use DeadKind::{Exhausted, Late, Lost, Quarantined, Rejected, Undecodable};
    use Ending::{Cancelled, Done, Removed, Replaced, Skipped};
    let kinds = (Exhausted, Rejected, Undecodable, Lost, Quarantined, Late);
    assert_eq!(hex(&postcard::to_allocvec(&kinds).unwrap()), "000102030405");
    use OnConflict::{Earliest, Keep, Latest, Replace};
    let policies = (Keep, Replace, Earliest, Latest, OnRunning::Refuse, OnRunning::Detach);
    assert_eq!(hex(&postcard::to_allocvec(&policies).unwrap()), "000102030001");
    let ends = (Done, Skipped, Cancelled, Replaced, Removed);
    assert_eq!(hex(&postcard::to_allocvec(&ends).unwrap()), "0001020304");
}

fn skip_reason(message: &[u8]) -> SkipReason {
    match decode(message).unwrap() {
        Message::Skipped(reason) => reason,
        Message::Entries(entries) => panic!("{entries:?}"),
    }
}

#[test]
fn what_is_not_an_intact_message_of_this_format_is_skipped() {
    for foreign in [&b""[..], b"x", b"d", b"dq", b"dq\x00", b"{\"dq\":2}"] {
        assert_eq!(skip_reason(foreign), SkipReason::Foreign, "{foreign:?}");
    }
    // Text that begins like a later format.
    assert_eq!(skip_reason(b"dqc, and more text"), SkipReason::Damaged);
    let message = encode(&[entry(Command::Barrier), entry(Command::Schedule(vec![job()]))]);
    for index in 3..message.len() {
        assert_eq!(skip_reason(&message[..index]), SkipReason::Damaged, "{index} bytes of it");
        let mut damaged = message.clone();
        damaged[index] ^= 1;
        assert_eq!(skip_reason(&damaged), SkipReason::Damaged, "byte {index}");
    }
    assert_eq!(entries(&message).len(), 2);
}

pub(crate) fn unknown_entry(flags: u8) -> Vec<u8> {
    let command = Command::Unknown { kind: 1_000, body: Bytes::from_static(b"?") };
    let mut message = encode(&[entry(command)]);
    // After magic (two bytes), format (one), count (one) and kind (two).
    message[6] = flags;
    message.truncate(message.len() - 8);
    sealed(message)
}

pub(super) fn sealed(mut message: Vec<u8>) -> Vec<u8> {
    let checksum = xxh3_64(&message);
    message.extend(checksum.to_le_bytes());
    message
}

#[test]
fn an_unknown_kind_is_skipped_unless_it_must_be_understood() {
    let entries = entries(&unknown_entry(0));
    assert!(matches!(entries[..], [Entry { sequence: 2, command: Command::Unknown { .. }, .. }]));
    let error = decode(&unknown_entry(1)).unwrap_err();
    assert_eq!(error.kind(), dq_core::ErrorKind::Incompatible);
    assert!(error.message().contains("kind 1000") && error.remedy_text().is_some(), "{error}");
}

#[test]
fn an_intact_message_that_cannot_be_decoded_is_of_a_newer_version() {
    let newer_format = b"dq\x02";
    let newer_body = b"dq\x01\x01\x00\x01\xe8\x07\x02\x05\x01?";
    for framed in [&newer_format[..], newer_body] {
        let error = decode(&sealed(framed.to_vec())).unwrap_err();
        assert_eq!(error.kind(), dq_core::ErrorKind::Incompatible, "{framed:?}");
    }
}

#[test]
fn delays_are_rounded_up() {
    for (micros, millis) in [(0, 0), (1, 1), (1_500, 2), (2_000, 2)] {
        let delay = dq_core::Due::After(Duration::from_micros(micros));
        assert!(matches!(Due::from(delay), Due::After(found) if found == millis), "{micros}");
    }
}
