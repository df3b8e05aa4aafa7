//! The bytes of requests and replies, which other versions read.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Announced, DeadKind, DeadReason, Due, Ended, Ending, Error, ErrorKind, HistoryLimit,
    HistoryLimits, Job, JobId, JobKey, JobRef, JobState, JobView, NewJob, QueueName, QueueStats,
    Receipt, Timestamp, Totals,
};

use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::client::{Answer, NotServed, Timeouts, outcome};
use super::view::{Stats, View};
use super::wire::{
    Cancellation, DecodeFailure, Failure, Outcome, Reply, Request, Rescheduled, Scheduled, decode,
    encode, pages,
};
use crate::log::wire::QueueOperation;

fn id(number: u8) -> JobId {
    JobId::from_bytes([number; 16])
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn job(number: u8, payload: usize) -> NewJob {
    NewJob::new(
        id(number),
        queue(),
        Due::After(Duration::from_millis(200)),
        vec![7; payload].into(),
    )
}

/// A message without its checksum.
fn hex(message: &[u8]) -> String {
    let bytes = [&message[..1], &message[9..]].concat();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn view() -> JobView {
    let mut job = Job::new(id(1), queue(), at(1_000), at(-5), Bytes::from_static(b"payload"));
    job.key = Some(JobKey::new("k").unwrap());
    job.headers.insert("colour", "red");
    job.first_due = at(900);
    job.max_attempts = Some(3);
    [job.attempts, job.deliveries, job.losses] = [1, 2, 3];
    let mut view = JobView::new(job, JobState::Dead);
    view.leased_until = Some(at(1));
    view.leased_since = Some(at(2));
    view.worker = Some("worker".to_owned());
    view.last_error = Some("error".to_owned());
    view.dead = Some((DeadReason::new(DeadKind::Rejected, "so"), at(3)));
    let mut ended = Ended::new(Ending::Removed, at(4));
    ended.reason = Some("why".to_owned());
    view.ended = Some(ended);
    view
}

fn stats() -> QueueStats {
    let mut stats = QueueStats::empty(queue());
    [stats.scheduled, stats.ready, stats.running, stats.dead] = [1, 2, 3, 4];
    stats.paused = true;
    stats.next_due = Some(at(5));
    let mut totals = Totals::default();
    [totals.created, totals.done, totals.skipped] = [6, 7, 8];
    [totals.cancelled, totals.replaced, totals.removed] = [9, 10, 11];
    stats.totals = Some(totals);
    stats
}

#[test]
fn the_bytes_of_requests_and_replies_stay_the_same() {
    let receipt = Receipt { id: id(2), due: at(-3) };
    let failure = Failure::from(&Error::new(ErrorKind::Full, "so").remedy("do"));
    let after = Due::After(Duration::from_millis(200));
    let job_ref = || JobRef::new(queue(), id(1));
    let limits = HistoryLimits::all(HistoryLimit::new(3, Duration::from_secs(1)));
    let requests = [
        (
            Request::schedule(&[job(1, 1)]).unwrap(),
            "0100011001010101010101010101010101010101017100 0000 01c801 0000 0107 1f81f4d045ca5c4c 00",
        ),
        (
            Request::Cancel(vec![(&JobRef::new(queue(), id(1))).into()]),
            "0101010171001001010101010101010101010101010101",
        ),
        (Request::Stats(vec![queue()]), "0104010171"),
        (Request::Forecast(queue(), vec![at(1)]), "010601710102"),
        (Request::Runners, "0107"),
        (
            Request::Reschedule(vec![(&dq_core::Reschedule { job: job_ref(), due: after }).into()]),
            "010201017100100101010101010101010101010101010101c801",
        ),
        (
            Request::Operate(queue(), QueueOperation::Replay(vec![id(1)], after.into())),
            "010301710001100101010101010101010101010101010101c801",
        ),
        (
            Request::Operate(queue(), QueueOperation::Remove(vec![id(1)])),
            "0103017101011001010101010101010101010101010101",
        ),
        (Request::Operate(queue(), QueueOperation::Pause), "0103017102"),
        (Request::Operate(queue(), QueueOperation::Resume), "0103017103"),
        (Request::Operate(queue(), QueueOperation::Purge), "0103017104"),
        (Request::Get((&job_ref()).into()), "01050171001001010101010101010101010101010101"),
        (Request::SetHistory((&limits).into()), "010803e80700"),
    ];
    let mut wrong = Vec::new();
    for (request, expected) in requests {
        let bytes = encode(&request);
        if hex(&bytes) != expected.replace(' ', "") {
            wrong.push(format!("{request:?}: {}", hex(&bytes)));
        }
        let decoded: Request = decode(&bytes).unwrap();
        assert_eq!(encode(&decoded), bytes);
    }
    let all_scheduled =
        [Scheduled::Created, Scheduled::Replaced, Scheduled::AlreadyRunning, Scheduled::Ended]
            .map(|it| it(receipt.into()))
            .into();
    let runner = Announced::new("web".to_owned(), Bytes::from_static(b"{}"), at(1), at(2));
    let outcomes = [
        (
            Outcome::Executed(Reply::Scheduled(vec![Scheduled::Kept(receipt.into())])),
            "010000010210 02020202020202020202020202020202 05",
        ),
        (Outcome::Executed(Reply::Cancelled(vec![Cancellation::NotFound])), "0100010101"),
        (
            Outcome::Executed(Reply::Scheduled(all_scheduled)),
            "0100000400100202020202020202020202020202020205011002020202020202020202020202020202050310020202020202020202020202020202020504100202020202020202020202020202020205",
        ),
        (
            Outcome::Executed(Reply::Cancelled(vec![
                Cancellation::Cancelled,
                Cancellation::AlreadyRunning,
            ])),
            "010001020002",
        ),
        (
            Outcome::Executed(Reply::Rescheduled(vec![
                Rescheduled::Moved(receipt.into()),
                Rescheduled::NotFound,
                Rescheduled::AlreadyRunning,
            ])),
            "01000203001002020202020202020202020202020202050102",
        ),
        (Outcome::Executed(Reply::Operated(300, true)), "010003ac0201"),
        (
            Outcome::Executed(Reply::Stats(vec![stats().into()])),
            "0100040101710102030401010a01060708090a0b",
        ),
        (Outcome::Executed(Reply::Job(None)), "01000500"),
        (
            Outcome::Executed(Reply::Job(Some(Box::new(view().into())))),
            "01000501 10010101010101010101010101010101010171 01016bd00f01880e0901030102030770 61796c6f6164 0106636f6c6f7572 03726564 03 0102 0104 0106776f726b6572 01056572726f72 010102736f06 0104010377687908",
        ),
        (Outcome::Executed(Reply::Forecast(vec![1, 300])), "0100060201ac02"),
        (Outcome::Executed(Reply::Runners(vec![runner.into()])), "0100070103776562027b7d0204"),
        (Outcome::Executed(Reply::Done), "010008"),
        (Outcome::Failed(failure), "01010466756c6c02736f0102646f"),
        (
            Outcome::Refused(Failure::from(&Error::new(ErrorKind::Incompatible, ""))),
            "01020c696e636f6d70617469626c650000",
        ),
    ];
    // Each state of a job.
    for (state, number) in [
        (JobState::Scheduled, 0),
        (JobState::Ready, 1),
        (JobState::Running, 2),
        (JobState::Dead, 3),
        (JobState::Ended, 4),
    ] {
        assert_eq!(postcard::to_allocvec(&state).unwrap(), [number]);
    }
    for (outcome, expected) in outcomes {
        let bytes = encode(&outcome);
        if hex(&bytes) != expected.replace(' ', "") {
            wrong.push(format!("{outcome:?}: {}", hex(&bytes)));
        }
        let decoded: Outcome = decode(&bytes).unwrap();
        assert_eq!(encode(&decoded), bytes);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_job_and_counts_survive_the_way() {
    let bytes = encode(&View::from(view()));
    assert_eq!(JobView::from(decode::<View>(&bytes).unwrap()), view());

    let bytes = encode(&Stats::from(stats()));
    assert_eq!(QueueStats::from(decode::<Stats>(&bytes).unwrap()), stats());
}

#[test]
fn an_error_keeps_kind_message_and_remedy() {
    use ErrorKind::*;
    for kind in [
        InvalidInput,
        Unsupported,
        Config,
        Duplicate,
        Unhandled,
        MissingState,
        Codec,
        Unavailable,
        Full,
        ReadOnly,
        Incompatible,
        OutcomeUnknown,
        Closed,
        Internal,
    ] {
        let error = Error::new(kind, "so").remedy("do");
        let decoded = Failure::from(&error).into_error("get");
        assert_eq!(decoded.kind(), kind);
        assert_eq!((decoded.message(), decoded.remedy_text()), ("so", Some("do")));
        assert_eq!(decoded.failed_operation(), "get");
    }
}

/// A message with this number as its version, and the checksum that belongs to it.
fn framed(version: u8, body: &[u8]) -> Vec<u8> {
    let checksum = xxh3_64_with_seed(body, version.into()).to_le_bytes();
    [&[version][..], &checksum, body].concat()
}

#[test]
fn a_message_that_cannot_be_decoded_says_why() {
    let intact = encode(&Request::Stats(vec![queue()]));
    assert_eq!(intact, framed(1, &[4, 1, 1, b'q']));
    for bit in 0..intact.len() * 8 {
        let mut damaged = intact.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(decode::<Request>(&damaged).unwrap_err(), DecodeFailure::Damaged, "bit {bit}");
    }
    for length in 0..intact.len() {
        let failure = decode::<Request>(&intact[..length]).unwrap_err();
        assert_eq!(failure, DecodeFailure::Damaged, "{length} bytes");
    }
    for (message, expected) in [
        (framed(2, &[7]), DecodeFailure::OtherVersion),
        (framed(1, &[99]), DecodeFailure::Unknown),
        (framed(1, &[]), DecodeFailure::Unknown),
        // A field that a newer version has added.
        (framed(1, &[4, 1, 1, b'q', 0]), DecodeFailure::Unknown),
    ] {
        assert_eq!(decode::<Request>(&message).unwrap_err(), expected, "{message:?}");
    }
    for failure in [DecodeFailure::Damaged, DecodeFailure::OtherVersion, DecodeFailure::Unknown] {
        assert!(failure.into_error().remedy_text().is_some());
    }
    assert!(DecodeFailure::Damaged.into_error().is_retryable());
}

#[test]
fn a_call_that_may_have_been_executed_has_an_unknown_outcome() {
    let kind = |must_run_once, reply: &[u8]| {
        outcome("cancel", must_run_once, reply).err().map(|error| error.kind())
    };
    let (newer, damaged) = (framed(1, &[0, 1, 1, 9]), [1, 2, 3]);
    assert_eq!(kind(true, &newer), Some(ErrorKind::OutcomeUnknown));
    assert_eq!(kind(true, &damaged), Some(ErrorKind::OutcomeUnknown));
    assert_eq!(kind(false, &damaged), Some(ErrorKind::Unavailable));
    // The first two were not executed, and the third may be executed twice: the caller opens the
    // log and makes the call itself.
    let refusal =
        encode(&Outcome::Refused(Failure::from(&Error::new(ErrorKind::Incompatible, ""))));
    for (must_run_once, reply) in [(true, framed(9, &[1, 2])), (true, refusal), (false, newer)] {
        let answer = outcome("cancel", must_run_once, &reply).unwrap();
        assert!(matches!(answer, Answer::NotServed(NotServed::Impossible)), "{reply:?}");
    }
}

#[test]
fn timeouts_count_only_one_after_the_other() {
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    let mut timeouts = Timeouts::default();
    timeouts.add(start, start + 5 * second);
    // It was sent before the first one had timed out.
    timeouts.add(start + second, start + 6 * second);
    assert!(!timeouts.is_exceeded());
    timeouts.add(start + 5 * second, start + 10 * second);
    assert!(timeouts.is_exceeded());
}

#[test]
fn a_large_call_is_split_by_size_and_keeps_its_order() {
    assert_eq!(pages(Vec::new()).len(), 1, "an empty call is one request");
    let jobs: Vec<_> = (0..5).map(|number| job(number, 400_000)).collect();
    let split = pages(jobs);
    assert_eq!(split.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
    let ids: Vec<_> = split.concat().iter().map(|job| job.id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4].map(id));
    let large = vec![job(1, 1), job(2, 5_000_000), job(3, 1)];
    assert_eq!(pages(large).iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
    let many: Vec<_> = (0..10_001).map(|_| job(1, 1)).collect();
    assert_eq!(pages(many).iter().map(Vec::len).collect::<Vec<_>>(), [10_000, 1]);
}
