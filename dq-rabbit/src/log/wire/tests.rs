//! Format 1, byte by byte. It must never change.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{DeadKind, DeadReason, Ending, Headers, JobId, JobKey, QueueName, Timestamp};

use super::entry::{
    Due, HistoryLimit, Job, JobNotes, Lease, OnConflict, OnRunning, Target, Verdict,
};
use super::frame::EntryBatch;
use super::*;

fn job() -> NewJob {
    let mut headers = Headers::new();
    headers.insert("colour", "red");
    NewJob {
        id: id(1),
        queue: queue(),
        key: Some(JobKey::new("k").unwrap()),
        on_conflict: OnConflict::Latest,
        on_running: OnRunning::Detach,
        due: Due::At(Timestamp::from_millis(1_000)),
        max_attempts: Some(300),
        remember: 60_000,
        payload: Bytes::from_static(b"payload").into(),
        headers,
    }
}

fn plain_job(on_conflict: OnConflict) -> NewJob {
    NewJob {
        id: id(2),
        queue: queue(),
        key: None,
        on_conflict,
        on_running: OnRunning::Refuse,
        due: Due::After(200),
        max_attempts: None,
        remember: 0,
        payload: Bytes::new().into(),
        headers: Headers::new(),
    }
}

fn id(number: u8) -> JobId {
    JobId::from_bytes([number; 16])
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn lease() -> Lease {
    Lease(queue(), id(3), 400)
}

fn settlement(verdict: Verdict) -> Settlement {
    Settlement(lease(), verdict)
}

fn stored_job(first_due: Option<Timestamp>) -> Job {
    Job {
        id: id(9),
        queue: queue(),
        key: first_due.map(|_| JobKey::new("k").unwrap()),
        due: Timestamp::from_millis(700),
        first_due,
        created: Timestamp::from_millis(-5),
        max_attempts: first_due.map(|_| 300),
        counts: [1, 2, 300],
    }
}

fn snapshot_job(first_due: Option<Timestamp>, state: SnapshotJobState) -> SnapshotJob {
    SnapshotJob {
        job: stored_job(first_due),
        seq: 400,
        state,
        notes: first_due.map(|first_due| JobNotes {
            last_error: Some("why".to_owned()),
            worker: Some("worker".to_owned()),
            leased_since: Some(first_due),
            remember: 60_000,
        }),
        payload: job().payload,
        headers: first_due.map_or_else(Headers::new, |_| job().headers),
    }
}

fn limits() -> HistoryLimits {
    HistoryLimits {
        default: HistoryLimit(1_000, 86_400_000),
        queues: vec![(queue(), HistoryLimit(0, 0))],
    }
}

fn header() -> SnapshotHeader {
    SnapshotHeader {
        log_id: 301,
        last_seq: 302,
        last_token: 303,
        last_ended: 304,
        producers: vec![(305, 306, 307)],
        queues: vec![(queue(), true, [1, 2, 3, 4, 5, 600])],
        history: limits(),
        capacity: Some(308),
    }
}

fn part(part: SnapshotPart) -> Command {
    Command::Snapshot(SnapshotEntry::Part { begin: 300, number: 1, part })
}

fn ended_job(ending: Ending) -> EndedJob {
    let first_due = Timestamp::from_millis(600);
    EndedJob {
        seq: 600,
        job: stored_job(Some(first_due)),
        leased_since: Some(Timestamp::from_millis(800)),
        worker: Some("worker".to_owned()),
        last_error: None,
        ending,
        reason: Some("so".to_owned()),
        at: Timestamp::from_millis(900),
    }
}

fn standing_lease() -> StandingLease {
    StandingLease { queue: queue(), job: id(3), token: 400, renewals: 500, lease_for: 30_000 }
}

/// Each command with its kind's number and its body's bytes. Integers are varints; signed ones are
/// zigzag-encoded.
fn frozen() -> Vec<(Command, u16, &'static str)> {
    let at = Timestamp::from_millis(700);
    vec![
        (Command::Barrier, 0, ""),
        (
            Command::Schedule(vec![job()]),
            1,
            "011001010101010101010101010101010101017101016b030100d00f01ac02e0d403077061796c6f61\
             647b8d2d5bf061fe320106636f6c6f757203726564",
        ),
        (
            Command::Schedule(
                [OnConflict::Keep, OnConflict::Replace, OnConflict::Earliest]
                    .map(plain_job)
                    .to_vec(),
            ),
            1,
            "031002020202020202020202020202020202017100000001c801000000c294d3380580062d00100202\
             0202020202020202020202020202017100010001c801000000c294d3380580062d0010020202020202\
             02020202020202020202017100020001c801000000c294d3380580062d00",
        ),
        (
            Command::Cancel(vec![
                JobRef(queue(), Target::Id(id(4))),
                JobRef(queue(), Target::Key(JobKey::new("k").unwrap())),
            ]),
            2,
            "020171001004040404040404040404040404040404017101016b",
        ),
        (
            Command::Reschedule(vec![Reschedule(
                JobRef(queue(), Target::Id(id(4))),
                Due::After(300),
            )]),
            3,
            "01017100100404040404040404040404040404040401ac02",
        ),
        (
            Command::Claim(Claim {
                worker: "worker".to_owned(),
                wants: vec![(queue(), 10, 30_000)],
                limit: 200,
                prefetched: vec![id(5)],
            }),
            4,
            "06776f726b65720101710ab0ea01c801011005050505050505050505050505050505",
        ),
        (
            Command::Settle(vec![
                settlement(Verdict::Done),
                settlement(Verdict::Skip("why".to_owned())),
                settlement(Verdict::Retry(Due::After(1), "why".to_owned())),
                settlement(Verdict::Again(Due::At(at), job().payload)),
                settlement(Verdict::Snooze(Due::At(at))),
                settlement(Verdict::Dead {
                    kind: "rejected".to_owned(),
                    message: "so".to_owned(),
                    failed: true,
                }),
                settlement(Verdict::Release { started: true }),
            ]),
            5,
            "0701711003030303030303030303030303030303900300017110030303030303030303030303030303\
             0390030103776879017110030303030303030303030303030303039003020101037768790171100303\
             030303030303030303030303030390030300f80a077061796c6f61647b8d2d5bf061fe320171100303\
             030303030303030303030303030390030400f80a017110030303030303030303030303030303039003\
             050872656a656374656402736f010171100303030303030303030303030303030390030601",
        ),
        (
            Command::Renew(vec![Renewal(lease(), 30_000)]),
            6,
            "01017110030303030303030303030303030303039003b0ea01",
        ),
        (
            Command::EndLeases(vec![standing_lease()]),
            7,
            "01017110030303030303030303030303030303039003f403b0ea01",
        ),
        (
            Command::Operate(queue(), QueueOperation::Replay(vec![id(6)], Due::At(at))),
            8,
            "01710001100606060606060606060606060606060600f80a",
        ),
        (
            Command::Operate(queue(), QueueOperation::Remove(vec![id(6)])),
            8,
            "017101011006060606060606060606060606060606",
        ),
        (Command::Operate(queue(), QueueOperation::Pause), 8, "017102"),
        (Command::Operate(queue(), QueueOperation::Resume), 8, "017103"),
        (Command::Operate(queue(), QueueOperation::Purge), 8, "017104"),
        (
            Command::Park(vec![(plain_job(OnConflict::Keep), "why".to_owned())]),
            9,
            "011002020202020202020202020202020202017100000001c801000000c294d3380580062d00037768\
             79",
        ),
        (Command::SetHistory(limits()), 10, "e80780b899290101710000"),
        (Command::SetCapacity(300), 11, "ac02"),
        (
            Command::Announce(Announcement("runner".to_owned(), Bytes::from_static(b"{}"), 45_000)),
            12,
            "0672756e6e6572027b7dc8df02",
        ),
        (Command::Close(301), 13, "ad02"),
        (Command::Snapshot(SnapshotEntry::Begin), 14, "00"),
        (
            part(SnapshotPart::Header(Box::new(header()))),
            14,
            "01ac020100ad02ae02af02b00201b102b202b302010171010102030405d804e80780b8992901017100\
             0001b402",
        ),
        (
            part(SnapshotPart::Jobs(vec![
                snapshot_job(None, SnapshotJobState::Waiting),
                snapshot_job(Some(at), SnapshotJobState::Leased(500, at)),
            ])),
            14,
            "01ac020101021009090909090909090909090909090909017100f80a0009000102ac02900300000770\
             61796c6f61647b8d2d5bf061fe32001009090909090909090909090909090909017101016bf80a01f8\
             0a0901ac020102ac02900301f403f80a0101037768790106776f726b657201f80ae0d403077061796c\
             6f61647b8d2d5bf061fe320106636f6c6f757203726564",
        ),
        (
            part(SnapshotPart::Jobs(vec![snapshot_job(
                None,
                SnapshotJobState::Dead(DeadReason::new(DeadKind::Exhausted, "so"), at),
            )])),
            14,
            "01ac020101011009090909090909090909090909090909017100f80a0009000102ac02900302000273\
             6ff80a00077061796c6f61647b8d2d5bf061fe3200",
        ),
        (
            part(SnapshotPart::Ended(vec![ended_job(Ending::Done)])),
            14,
            "01ac02010201d8041009090909090909090909090909090909017101016bf80a01b0090901ac020102\
             ac0201c00c0106776f726b657200000102736f880e",
        ),
        (
            part(SnapshotPart::Pins(vec![(id(8), at, at)])),
            14,
            "01ac020103011008080808080808080808080808080808f80af80a",
        ),
        (
            part(SnapshotPart::Runners(vec![(
                "runner".to_owned(),
                Bytes::from_static(b"{}"),
                at,
                at,
            )])),
            14,
            "01ac020104010672756e6e6572027b7df80af80a",
        ),
        (
            part(SnapshotPart::Leases(vec![standing_lease()])),
            14,
            "01ac02010501017110030303030303030303030303030303039003f403b0ea01",
        ),
        (Command::Snapshot(SnapshotEntry::End { begin: 300, parts: 400 }), 14, "02ac029003"),
    ]
}

pub(super) fn every_command() -> Vec<Command> {
    frozen().into_iter().map(|(command, _, _)| command).collect()
}

pub(super) fn scheduling() -> Vec<Command> {
    vec![Command::Schedule(vec![job()]), Command::Schedule(vec![plain_job(OnConflict::Keep)])]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn entry(command: Command) -> Entry {
    Entry { producer_id: 1_000, sequence: 2, at: Timestamp::from_millis(-3), command }
}

fn batch(message: &[u8]) -> EntryBatch {
    decode(message).unwrap().into_batch().expect("a message of this format")
}

/// `6471` is the magic, `01` the format; the head is the number of entries. Each entry: kind,
/// flags, producer id (`e807`), sequence number (`02`), time (`05` is -3), length and body. The
/// checksum has eight bytes.
#[test]
fn the_bytes_of_format_1_stay_the_same() {
    let mut wrong = Vec::new();
    for (number, (command, kind, expected)) in frozen().into_iter().enumerate() {
        let body = hex(&command.encode_body());
        if (command.kind(), &*body) != (kind, expected) {
            wrong.push(format!("{number}: {} {body}", command.kind()));
        }
        let message = encode(&[entry(command)]);
        let decoded = batch(&message);
        assert_eq!(encode(&decoded.entries), message);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let remove = Command::Operate(queue(), QueueOperation::Remove(Vec::new()));
    let announce = Command::Announce(Announcement("r".to_owned(), Bytes::from_static(b"{}"), 5));
    let frame = encode(&[remove, announce].map(entry));
    assert_eq!(
        hex(&frame),
        "647101020801e807020504017101000c00e8070205060172027b7d05a36b94acacfa9592"
    );
    assert_eq!(hex(&encode(&[])), "64710100014e7ac6bdff2c63");
}

#[test]
fn reasons_and_ends_keep_their_numbers() {
    use DeadKind::{Exhausted, Late, Lost, Quarantined, Rejected, Undecodable};
    use Ending::{Cancelled, Done, Removed, Replaced, Skipped};
    let kinds = (Exhausted, Rejected, Undecodable, Lost, Quarantined, Late);
    assert_eq!(hex(&postcard::to_allocvec(&kinds).unwrap()), "000102030405");
    let ends = (Done, Skipped, Cancelled, Replaced, Removed);
    assert_eq!(hex(&postcard::to_allocvec(&ends).unwrap()), "0001020304");
}

fn skip_reason(message: &[u8]) -> SkipReason {
    match decode(message).unwrap() {
        Message::Skipped(reason) => reason,
        Message::Batch(batch) => panic!("{batch:?}"),
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
    for length in 3..message.len() {
        assert_eq!(skip_reason(&message[..length]), SkipReason::Damaged, "{length} bytes of it");
    }
    for index in 3..message.len() {
        let mut damaged = message.clone();
        damaged[index] ^= 1;
        assert_eq!(skip_reason(&damaged), SkipReason::Damaged, "byte {index}");
    }
    assert_eq!(batch(&message).entries.len(), 2);
}

/// Two bytes as a varint.
const UNKNOWN_KIND: u16 = 1_000;

fn unknown(flags: u8) -> Vec<u8> {
    let command = Command::Unknown { kind: UNKNOWN_KIND, body: Bytes::from_static(b"?") };
    let known = encode(&[entry(command)]);
    let mut message = known[..known.len() - 8].to_vec();
    // After magic (two bytes), format (one), head (one) and kind (two).
    message[6] = flags;
    let checksum = xxhash_rust::xxh3::xxh3_64(&message);
    message.extend(checksum.to_le_bytes());
    message
}

#[test]
fn an_unknown_kind_is_skipped_unless_it_must_be_understood() {
    let decoded = batch(&unknown(0));
    assert_eq!(decoded.entries[0].sequence, 2);
    let is_unknown =
        |entry: &Entry| matches!(entry.command, Command::Unknown { kind: UNKNOWN_KIND, .. });
    assert!(decoded.entries.iter().all(is_unknown), "{decoded:?}");
    let error = decode(&unknown(1)).unwrap_err();
    assert_eq!(error.kind(), dq_core::ErrorKind::Incompatible);
    assert!(error.message().contains("kind 1000") && error.remedy_text().is_some(), "{error}");
}

/// First a later format, then a body that does not decode.
#[test]
fn an_intact_message_that_cannot_be_decoded_is_of_a_newer_version() {
    let mut newer_format = b"dq\x02".to_vec();
    newer_format.extend(xxhash_rust::xxh3::xxh3_64(&newer_format).to_le_bytes());
    let mut framed = b"dq\x01\x01\x00\x01\xe8\x07\x02\x05\x01?".to_vec();
    framed.extend(xxhash_rust::xxh3::xxh3_64(&framed).to_le_bytes());
    for message in [newer_format, framed] {
        let error = decode(&message).unwrap_err();
        assert_eq!(error.kind(), dq_core::ErrorKind::Incompatible, "{message:?}");
    }
}

#[test]
fn a_lost_payload_is_not_an_empty_one() {
    let payload = job().payload;
    assert_eq!(payload.checksum(), Checksum::of(b"payload"));
    let mut freed = payload.clone();
    freed.drop_bytes();
    assert_eq!((freed.checksum(), freed.len()), (payload.checksum(), payload.len()));
    let lost = Payload::lost(payload.checksum());
    assert_eq!((lost.checksum(), lost.len()), (payload.checksum(), 0));
    assert_ne!(lost.checksum(), Checksum::of(lost.bytes()));
}

#[test]
fn delays_are_rounded_up() {
    let millis = |delay| match Due::from(dq_core::Due::After(delay)) {
        Due::After(millis) => millis,
        Due::At(_) => panic!("a delay has become a time"),
    };
    assert_eq!(millis(Duration::from_micros(1_500)), 2);
    assert_eq!(millis(Duration::from_millis(2)), 2);
    assert_eq!(millis(Duration::ZERO), 0);
    assert_eq!(millis(Duration::MAX), u64::MAX);
}
