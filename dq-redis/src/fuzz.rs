//! Fuzzes the decoders with damaged values.

use std::time::Duration;

use bytes::Bytes;
use dq_core::import::ImportJob;
use dq_core::{DeadKind, DeadReason, JobId, JobKey, NewJob, QueueName, Timestamp};
use dq_testkit::fuzz;

use crate::record::{
    Note, Numbers, decode, decode_past, decode_reason, encode, encode_reason, undecodable,
};

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn job() -> NewJob {
    let id = JobId::from_bytes([7; 16]);
    let mut job = NewJob::new(id, queue(), Timestamp::from_millis(1_000), Bytes::from("payload"));
    job.key = Some(JobKey::new("order-1").unwrap());
    job.max_attempts = Some(5);
    job.headers.insert("colour", "red");
    job.remember(Duration::from_secs(60))
}

#[test]
fn records() {
    let plain = NewJob::new(job().id, queue(), Timestamp::EPOCH, Bytes::new());
    fuzz::check("records", &[encode(&job(), 1_700_000_000_000), encode(&plain, 0)], |bytes| {
        let (record, handle) = (Bytes::copy_from_slice(bytes), &bytes[..bytes.len().min(14)]);
        let numbers = Numbers::decode(bytes);
        for handle in [&[7; 14][..], handle] {
            decode(&queue(), handle, &record, 1_000, numbers);
            undecodable(&queue(), handle, &record, 1_000, numbers);
        }
        decode(&queue(), &[7; 14], &record, 1_000, numbers).is_some()
    });
}

#[test]
fn reasons_states_and_ended_jobs() {
    let reason = encode_reason(&DeadReason::new(DeadKind::Rejected, "so"));
    let numbers = [&[0; 7][..], &[9], &1_000_i64.to_be_bytes(), &[0; 19], &[5]].concat();
    let note = [&[1; 6][..], &[0; 6], &5_u32.to_be_bytes(), &[1; 6], &[7, 7], &[1, 3, 3]].concat();
    let state = [&numbers[..], &note, b"keywebso"].concat();
    let length = (state.len() as u32).to_be_bytes();
    let past = |letter: u8| [&[letter][..], &length, &state, &reason].concat();
    let at = Timestamp::EPOCH;
    fuzz::check("reasons and states", &[reason.clone(), state.clone()], |bytes| {
        decode_reason(bytes);
        Note::decode(bytes);
        // Unreadable parts are left out.
        true
    });
    let valid = [past(b'D'), past(b'S'), past(b'M')];
    fuzz::check("ended jobs", &valid, |bytes| decode_past(&queue(), &[7; 14], bytes, at).is_some());
}

#[test]
fn journal_entries_of_imports() {
    let entry = [&1_000_i64.to_be_bytes()[..], &[1], b"q", b"payload"].concat();
    fuzz::check("journal entries of imports", &[entry], |bytes| {
        ImportJob::from_record(&Bytes::copy_from_slice(bytes)).is_ok()
    });
}
