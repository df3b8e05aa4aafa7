//! The bytes of each command, which must never change: existing logs have this format.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{DeadKind, DeadReason, Ending, Headers, JobId, JobKey, QueueName, Timestamp};

use super::entry::{Due, HistoryLimit, Lease, OnConflict, OnRunning, Target, Verdict};
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
        due: Due::At(Timestamp::from_millis(1_000)),
        max_attempts: Some(300),
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
        due: Due::After(200),
        max_attempts: None,
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

fn snapshot_job(state: SnapshotJobState) -> SnapshotJob {
    SnapshotJob {
        job: plain_job(OnConflict::Keep),
        created: Timestamp::from_millis(-5),
        counts: [1, 2, 300],
        seq: 400,
        state,
    }
}

fn limits() -> HistoryLimits {
    HistoryLimits {
        default: HistoryLimit(1_000, 86_400_000),
        queues: vec![(queue(), HistoryLimit(0, 0))],
    }
}

fn extra(extra: SnapshotExtra) -> Command {
    Command::Snapshot(SnapshotPart::Extra { begin: 300, number: 1, extra })
}

fn ended_job(ending: Ending) -> EndedJob {
    EndedJob {
        seq: 600,
        id: id(9),
        queue: queue(),
        key: Some(JobKey::new("k").unwrap()),
        due: Timestamp::from_millis(700),
        created: Timestamp::from_millis(-5),
        max_attempts: Some(300),
        counts: [1, 2, 300],
        leased_since: Some(Timestamp::from_millis(800)),
        worker: Some("worker".to_owned()),
        last_error: None,
        ending,
        reason: Some("so".to_owned()),
        at: Timestamp::from_millis(900),
    }
}

/// Each command, with the bytes of its body in hexadecimal. Integers are varints; signed ones are
/// zigzag-encoded.
fn golden() -> Vec<(Command, u16, &'static str)> {
    let at = Timestamp::from_millis(700);
    let dead = || DeadReason::new(DeadKind::Rejected, "so");
    vec![
        (Command::Barrier, 0, ""),
        (
            Command::Schedule(vec![job()]),
            1,
            "011001010101010101010101010101010101017101016b0300d00f01ac02077061796c6f\
61647b8d2d5bf061fe320106636f6c6f757203726564",
        ),
        (
            Command::Schedule(
                [OnConflict::Keep, OnConflict::Replace, OnConflict::Earliest]
                    .map(plain_job)
                    .to_vec(),
            ),
            1,
            "0310020202020202020202020202020202020171000001c8010000c294d3380580062d00\
10020202020202020202020202020202020171000101c8010000c294d3380580062d0010\
020202020202020202020202020202020171000201c8010000c294d3380580062d00",
        ),
        (
            Command::Cancel(vec![
                JobRef(queue(), Target::Id(id(4))),
                JobRef(queue(), Target::Key(JobKey::new("k").unwrap())),
            ]),
            3,
            "020171001004040404040404040404040404040404017101016b",
        ),
        (
            Command::Reschedule(vec![Reschedule(
                JobRef(queue(), Target::Id(id(4))),
                Due::After(300),
            )]),
            4,
            "01017100100404040404040404040404040404040401ac02",
        ),
        (
            Command::Claim(Claim {
                worker: "worker".to_owned(),
                wants: vec![(queue(), 10, 30_000)],
                limit: 200,
                prefetched: vec![id(5)],
            }),
            5,
            "06776f726b65720101710ab0ea01c801011005050505050505050505050505050505",
        ),
        (
            Command::Settle(vec![
                settlement(Verdict::Done),
                settlement(Verdict::Skip("why".to_owned())),
                settlement(Verdict::Retry(Due::After(1), "why".to_owned())),
                settlement(Verdict::Snooze(Due::At(at))),
                settlement(Verdict::Dead {
                    kind: "rejected".to_owned(),
                    message: "so".to_owned(),
                    failed: true,
                }),
                settlement(Verdict::Release { started: true }),
            ]),
            6,
            "060171100303030303030303030303030303030390030001711003030303030303030303\
030303030303900301037768790171100303030303030303030303030303030390030201\
01037768790171100303030303030303030303030303030390030300f80a017110030303\
030303030303030303030303039003040872656a656374656402736f0101711003030303\
03030303030303030303030390030501",
        ),
        (
            Command::Renew(vec![Renewal(lease(), 30_000)]),
            7,
            "01017110030303030303030303030303030303039003b0ea01",
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
            "0110020202020202020202020202020202020171000001c8010000c294d3380580062d00\
03776879",
        ),
        (Command::Snapshot(SnapshotPart::Begin), 10, "00"),
        (
            Command::Snapshot(SnapshotPart::Header {
                begin: 300,
                log_id: 301,
                last_seq: 302,
                last_token: 303,
                producers: vec![(304, 305, 306)],
                queues: vec![(queue(), true, [1, 2, 3, 4, 5, 600])],
            }),
            10,
            "01ac02ad02ae02af0201b002b102b202010171010102030405d804",
        ),
        (
            Command::Snapshot(SnapshotPart::Jobs(
                300,
                vec![
                    snapshot_job(SnapshotJobState::Waiting),
                    snapshot_job(SnapshotJobState::Leased(500, at)),
                    snapshot_job(SnapshotJobState::Dead(dead(), at)),
                ],
            )),
            10,
            "02ac020310020202020202020202020202020202020171000001c8010000c294d3380580\
062d00090102ac0290030010020202020202020202020202020202020171000001c80100\
00c294d3380580062d00090102ac02900301f403f80a1002020202020202020202020202\
0202020171000001c8010000c294d3380580062d00090102ac029003020102736ff80a",
        ),
        (
            Command::ScheduleWith(vec![
                (job(), JobOptions { on_running: OnRunning::Refuse, remember: 0 }),
                (
                    plain_job(OnConflict::Keep),
                    JobOptions { on_running: OnRunning::Detach, remember: 60_000 },
                ),
            ]),
            2,
            "021001010101010101010101010101010101017101016b0300d00f01ac02077061796c6f\
61647b8d2d5bf061fe320106636f6c6f7572037265640000100202020202020202020202\
02020202020171000001c8010000c294d3380580062d0001e0d403",
        ),
        (
            Command::Settle(vec![settlement(Verdict::Again(Due::At(at), job().payload))]),
            6,
            "010171100303030303030303030303030303030390030600f80a077061796c6f61647b8d\
2d5bf061fe32",
        ),
        (Command::SetHistory(limits()), 11, "e80780b899290101710000"),
        (
            Command::Announce(Announcement("runner".to_owned(), Bytes::from_static(b"{}"), 45_000)),
            12,
            "0672756e6e6572027b7dc8df02",
        ),
        (Command::SetCapacity(300), 13, "ac02"),
        (extra(SnapshotExtra::Capacity(300)), 10, "03ac020107ac02"),
        (
            extra(SnapshotExtra::History { limits: limits(), last_ended: 500 }),
            10,
            "03ac020100e80780b899290101710000f403",
        ),
        (
            extra(SnapshotExtra::Notes(vec![JobNotes {
                job: id(7),
                last_error: Some("why".to_owned()),
                worker: Some("worker".to_owned()),
                leased_since: Some(at),
                remember: 60_000,
            }])),
            10,
            "03ac02010101100707070707070707070707070707070701037768790106776f726b6572\
01f80ae0d403",
        ),
        (
            extra(SnapshotExtra::Ended(
                [
                    Ending::Done,
                    Ending::Skipped,
                    Ending::Cancelled,
                    Ending::Replaced,
                    Ending::Removed,
                ]
                .map(ended_job)
                .to_vec(),
            )),
            10,
            "03ac02010205d8041009090909090909090909090909090909017101016bf80a0901ac02\
0102ac0201c00c0106776f726b657200000102736f880ed8041009090909090909090909\
090909090909017101016bf80a0901ac020102ac0201c00c0106776f726b657200010102\
736f880ed8041009090909090909090909090909090909017101016bf80a0901ac020102\
ac0201c00c0106776f726b657200020102736f880ed80410090909090909090909090909\
09090909017101016bf80a0901ac020102ac0201c00c0106776f726b657200030102736f\
880ed8041009090909090909090909090909090909017101016bf80a0901ac020102ac02\
01c00c0106776f726b657200040102736f880e",
        ),
        (
            extra(SnapshotExtra::Pins(vec![(id(8), at, at)])),
            10,
            "03ac020103011008080808080808080808080808080808f80af80a",
        ),
        (
            extra(SnapshotExtra::Runners(vec![(
                "runner".to_owned(),
                Bytes::from_static(b"{}"),
                at,
                at,
            )])),
            10,
            "03ac020104010672756e6e6572027b7df80af80a",
        ),
        (
            Command::Snapshot(SnapshotPart::End { begin: 300, jobs: 400, extras: 500 }),
            10,
            "04ac029003f403",
        ),
        (
            Command::EndLeases(vec![standing_lease()]),
            14,
            "01017110030303030303030303030303030303039003f403b0ea01",
        ),
        (
            extra(SnapshotExtra::Leases(vec![standing_lease()])),
            10,
            "03ac02010501017110030303030303030303030303030303039003f403b0ea01",
        ),
        (
            Command::Hello(Hello { process: 500, levels: levels(), ttl: 45_000 }),
            15,
            "f40301ac02c8df02",
        ),
        (Command::EndHellos(vec![live_process()]), 16, "01f40301ac02c8df02d804"),
        (Command::Raise(300), 17, "ac02"),
        (Command::Close(301), 18, "ad02"),
        (
            extra(SnapshotExtra::Levels(300, vec![live_process()])),
            10,
            "03ac020106ac0201f40301ac02c8df02d804",
        ),
    ]
}

/// Each form of each command.
pub(super) fn every_command() -> Vec<Command> {
    golden().into_iter().map(|(command, _, _)| command).collect()
}

/// Commands that schedule jobs.
pub(super) fn scheduling() -> Vec<Command> {
    vec![Command::Schedule(vec![job()]), Command::Schedule(vec![plain_job(OnConflict::Keep)])]
}

/// A snapshot has the number of a kind, not its name.
#[test]
fn the_number_of_each_kind_of_death_stays_the_same() {
    for (number, kind) in (0..).zip([
        DeadKind::Exhausted,
        DeadKind::Rejected,
        DeadKind::Undecodable,
        DeadKind::Lost,
        DeadKind::Quarantined,
        DeadKind::Late,
    ]) {
        assert_eq!(postcard::to_allocvec(&kind).unwrap(), [number], "{kind:?}");
    }
}

fn levels() -> Levels {
    Levels { min: 1, max: 300 }
}

fn live_process() -> LiveProcess {
    LiveProcess { id: 500, levels: levels(), ttl: 45_000, renewals: 600 }
}

fn standing_lease() -> StandingLease {
    StandingLease { queue: queue(), job: id(3), token: 400, renewals: 500, lease_for: 30_000 }
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

#[test]
fn the_bytes_of_each_command_stay_the_same() {
    let mut wrong = Vec::new();
    for (number, (command, kind, expected)) in golden().into_iter().enumerate() {
        let body = hex(&command.encode_body());
        if (command.kind(), &*body) != (kind, expected) {
            wrong.push(format!("{number}: {} {body}", command.kind()));
        }
        let message = encode(&[entry(command)]);
        let decoded = batch(&message);
        assert_eq!(encode(&decoded.entries), message);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `6471` is the magic, `02` the format; the number of entries. Each entry: kind, flags, `e807` the
/// producer id 1000, `02` the sequence number, `05` the time -3, the length of the body, the body. The
/// last eight bytes are the checksum.
#[test]
fn the_bytes_of_a_frame_stay_the_same() {
    let remove = || Command::Operate(queue(), QueueOperation::Remove(Vec::new()));
    let announce = || Command::Announce(Announcement("r".to_owned(), Bytes::from_static(b"{}"), 5));
    for (commands, expected) in [
        (vec![], "6471020090444635806d3f82"),
        (vec![Command::Barrier], "647102010001e807020500e374d5a235a78152"),
        (
            vec![remove(), announce()],
            "647102020801e807020504017101000c00e8070205060172027b7d056768d5fda003fa93",
        ),
    ] {
        let entries: Vec<_> = commands.into_iter().map(entry).collect();
        let message = encode(&entries);
        assert_eq!(hex(&message), expected);
        let decoded = batch(&message);
        assert_eq!(decoded.entries.len(), entries.len());
        assert_eq!(encode(&decoded.entries), message);
    }
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
    assert_eq!(skip_reason(b"dq\x01\x00\x01"), SkipReason::OldFormat);
    // Text that happens to begin like a message of a later format.
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

fn unknown(kind: u16, flags: u8) -> Vec<u8> {
    let known = encode(&[entry(Command::Unknown { kind, body: Bytes::from_static(b"?") })]);
    // Magic, format, head (one byte), kind (two bytes).
    let mut message = known[..known.len() - 8].to_vec();
    message[6] = flags;
    let checksum = xxhash_rust::xxh3::xxh3_64(&message);
    message.extend(checksum.to_le_bytes());
    message
}

#[test]
fn an_unknown_kind_is_skipped_unless_it_must_be_understood() {
    let decoded = batch(&unknown(1_000, 0));
    assert_eq!(decoded.entries[0].sequence, 2);
    let is_unknown = |entry: &Entry| matches!(entry.command, Command::Unknown { kind: 1_000, .. });
    assert!(decoded.entries.iter().all(is_unknown), "{decoded:?}");
    let error = decode(&unknown(1_000, 1)).unwrap_err();
    assert_eq!(error.kind(), dq_core::ErrorKind::Incompatible);
    assert!(error.message().contains("kind 1000") && error.remedy_text().is_some(), "{error}");
}

/// A newer version has written these: what this one takes for a body has another form.
#[test]
fn an_intact_message_that_cannot_be_decoded_is_of_a_newer_version() {
    let mut newer_format = b"dq\x03".to_vec();
    newer_format.extend(xxhash_rust::xxh3::xxh3_64(&newer_format).to_le_bytes());
    let mut framed = b"dq\x02\x01\x00\x01\xe8\x07\x02\x05\x01?".to_vec();
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

/// A delay that is cut to whole milliseconds would make a job early.
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
