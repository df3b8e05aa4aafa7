//! The bytes of each command, which must never change: existing logs have this format.

use bytes::Bytes;
use dq_core::{DeadKind, DeadReason, Headers, JobId, JobKey, QueueName, Timestamp};

use super::entry::{Due, Lease, OnConflict, Target, Verdict};
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
        payload: Bytes::from_static(b"payload"),
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
        payload: Bytes::new(),
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

/// Each command, with the bytes of its message after the version, in hexadecimal.
///
/// All begin with the batch and the entry: `00` without `replay_from`, or `01 f403` with 500; `01`
/// entry; `e807` the producer id 1000; `02` the sequence number; `05` the time -3; the number of
/// the command. Integers are varints; signed ones are zigzag-encoded.
fn golden() -> Vec<(Command, &'static str)> {
    let at = Timestamp::from_millis(700);
    let dead = || DeadReason::new(DeadKind::Rejected, "so");
    vec![
        (Command::Barrier, "01f40301e807020500"),
        (
            Command::Schedule(vec![job()]),
            "0001e807020501011001010101010101010101010101010101017101016b0300d00f01ac\
02077061796c6f61640106636f6c6f757203726564",
        ),
        (
            Command::Schedule(
                [OnConflict::Keep, OnConflict::Replace, OnConflict::Earliest]
                    .map(plain_job)
                    .to_vec(),
            ),
            "01f40301e8070205010310020202020202020202020202020202020171000001c8010000\
0010020202020202020202020202020202020171000101c8010000001002020202020202\
0202020202020202020171000201c801000000",
        ),
        (
            Command::Cancel(vec![
                JobRef(queue(), Target::Id(id(4))),
                JobRef(queue(), Target::Key(JobKey::new("k").unwrap())),
            ]),
            "0001e807020502020171001004040404040404040404040404040404017101016b",
        ),
        (
            Command::Reschedule(vec![Reschedule(
                JobRef(queue(), Target::Id(id(4))),
                Due::After(300),
            )]),
            "01f40301e80702050301017100100404040404040404040404040404040401ac02",
        ),
        (
            Command::Claim(Claim {
                wants: vec![(queue(), 10, 30_000)],
                limit: 200,
                prefetched: vec![id(5)],
            }),
            "0001e8070205040101710ab0ea01c801011005050505050505050505050505050505",
        ),
        (
            Command::Settle(vec![
                settlement(Verdict::Done),
                settlement(Verdict::Skip),
                settlement(Verdict::Retry(Due::After(1))),
                settlement(Verdict::Snooze(Due::At(at))),
                settlement(Verdict::Dead {
                    kind: "rejected".to_owned(),
                    message: "so".to_owned(),
                    failed: true,
                }),
                settlement(Verdict::Release { started: true }),
            ]),
            "01f40301e807020505060171100303030303030303030303030303030390030001711003\
030303030303030303030303030303900301017110030303030303030303030303030303\
0390030201010171100303030303030303030303030303030390030300f80a0171100303\
03030303030303030303030303039003040872656a656374656402736f01017110030303\
0303030303030303030303030390030501",
        ),
        (
            Command::Renew(vec![Renewal(lease(), 30_000)]),
            "0001e80702050601017110030303030303030303030303030303039003b0ea01",
        ),
        (
            Command::Operate(queue(), QueueOperation::Replay(Some(vec![id(6)]), Due::At(at))),
            "01f40301e8070205070171000101100606060606060606060606060606060600f80a",
        ),
        (Command::Operate(queue(), QueueOperation::Remove(None)), "0001e80702050701710100"),
        (Command::Operate(queue(), QueueOperation::Pause), "01f40301e807020507017102"),
        (Command::Operate(queue(), QueueOperation::Resume), "0001e807020507017103"),
        (Command::Operate(queue(), QueueOperation::Purge), "01f40301e807020507017104"),
        (
            Command::Park(vec![(plain_job(OnConflict::Keep), "why".to_owned())]),
            "0001e8070205080110020202020202020202020202020202020171000001c80100000003\
776879",
        ),
        (Command::Snapshot(SnapshotPart::Begin), "01f40301e80702050900"),
        (
            Command::Snapshot(SnapshotPart::Header {
                begin: 300,
                log_id: 301,
                last_seq: 302,
                last_token: 303,
                producers: vec![(304, 305, 306)],
                queues: vec![(queue(), true, [1, 2, 3, 4, 5, 600])],
            }),
            "0001e80702050901ac02ad02ae02af0201b002b102b202010171010102030405d804",
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
            "01f40301e80702050902ac020310020202020202020202020202020202020171000001c8\
01000000090102ac0290030010020202020202020202020202020202020171000001c801\
000000090102ac02900301f403f80a100202020202020202020202020202020201710000\
01c801000000090102ac029003020102736ff80a",
        ),
        (
            Command::Snapshot(SnapshotPart::End { begin: 300, jobs: 400 }),
            "0001e80702050903ac029003",
        ),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_bytes_of_each_command_stay_the_same() {
    let mut wrong = Vec::new();
    for (number, (command, expected)) in golden().into_iter().enumerate() {
        let entry =
            Entry { producer_id: 1_000, sequence: 2, at: Timestamp::from_millis(-3), command };
        let message = encode((number % 2 == 0).then_some(500), &[entry]);
        let body = message.strip_prefix(b"dq\x01").expect("the prefix of version 1");
        if hex(body) != expected {
            wrong.push(format!("{number}: {}", hex(body)));
        }
        let decoded = decode(&message).expect("it was just encoded");
        assert_eq!(encode(decoded.replay_from, &decoded.entries), message);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
