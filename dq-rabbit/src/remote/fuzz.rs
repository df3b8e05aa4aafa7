//! The decoders of requests and replies, on input that no version has written.

use dq_core::{
    Error, ErrorKind, Job, JobId, JobRef, JobState, JobView, NewJob, QueueName, Timestamp,
};
use dq_testkit::fuzz;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::view::{Stats, View};
use super::wire::{Cancellation, Failure, Outcome, Reply, Request, decode, encode};

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn id() -> JobId {
    JobId::from_bytes([1; 16])
}

/// The bytes with the checksum that belongs to them.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let (Some(version), Some(body)) = (bytes.first(), bytes.get(9..)) else {
        return bytes.to_vec();
    };
    let checksum = xxh3_64_with_seed(body, (*version).into()).to_le_bytes();
    [&[*version][..], &checksum, body].concat()
}

#[test]
fn requests() {
    let new = NewJob::new(id(), queue(), Timestamp::from_millis(1_000), vec![7; 30].into());
    let job = JobRef::new(queue(), id());
    let requests = [
        encode(&Request::schedule(&[new.clone(), new]).unwrap()),
        encode(&Request::Cancel(vec![(&job).into()])),
        encode(&Request::Get((&job).into())),
        encode(&Request::Stats(vec![queue(), queue()])),
        encode(&Request::Forecast(queue(), vec![Timestamp::EPOCH, Timestamp::MAX])),
        encode(&Request::Runners),
    ];
    fuzz::check("requests", &requests, |bytes| {
        drop(decode::<Request>(&sealed(bytes)));
        decode::<Request>(bytes).is_ok()
    });
}

#[test]
fn replies() {
    let job = Job::new(id(), queue(), Timestamp::EPOCH, Timestamp::EPOCH, vec![7; 30].into());
    let view = View::from(JobView::new(job, JobState::Ready));
    let stats = Stats::from(dq_core::QueueStats::empty(queue()));
    let failure = Failure::from(&Error::new(ErrorKind::Full, "so").remedy("do"));
    let outcomes = [
        encode(&Outcome::Executed(Reply::Cancelled(vec![Cancellation::NotFound]))),
        encode(&Outcome::Executed(Reply::Job(Some(Box::new(view))))),
        encode(&Outcome::Executed(Reply::Stats(vec![stats]))),
        encode(&Outcome::Executed(Reply::Forecast(vec![1, 2, 3]))),
        encode(&Outcome::Failed(failure)),
    ];
    fuzz::check("replies", &outcomes, |bytes| {
        match decode::<Outcome>(&sealed(bytes)) {
            Ok(Outcome::Executed(Reply::Job(Some(view)))) => drop(JobView::from(*view)),
            Ok(Outcome::Failed(failure) | Outcome::Refused(failure)) => {
                drop(failure.into_error("fuzz").to_string());
            }
            _ => {}
        }
        decode::<Outcome>(bytes).is_ok()
    });
}
