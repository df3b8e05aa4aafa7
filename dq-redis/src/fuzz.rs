//! Decoders of stored bytes get damaged values: they neither panic nor trust a length.

use std::time::Duration;

use bytes::Bytes;
use dq_core::import::ImportJob;
use dq_core::{DeadKind, DeadReason, JobId, JobKey, NewJob, QueueName, Timestamp};
use dq_testkit::fuzz;

use crate::record::{
    Note, Numbers, decode, decode_past, decode_reason, encode, encode_reason, undecodable,
};
use crate::redisson::codec::Codec;
use crate::redisson::member::{Format, parse_as};

const HANDLE: [u8; 14] = [7; 14];

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
    let valid = [job(), plain].map(|job| encode(&job, 1_000));
    fuzz::check("records", &valid, |bytes| {
        let record = Bytes::copy_from_slice(bytes);
        let damaged_handle = &bytes[..bytes.len().min(HANDLE.len())];
        let numbers = Numbers::decode(bytes);
        for handle in [&HANDLE[..], damaged_handle] {
            decode(&queue(), handle, &record, 1_000, numbers);
            undecodable(&queue(), handle, &record, 1_000, numbers);
        }
        decode(&queue(), &HANDLE, &record, 1_000, numbers).is_some()
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

    fuzz::check("reasons and states", &[reason.clone(), state.clone()], |bytes| {
        decode_reason(bytes);
        Note::decode(bytes);
        // These decoders accept everything and leave out unreadable parts.
        true
    });
    fuzz::check("ended jobs", &[past(b'D'), past(b'S'), past(b'M')], |bytes| {
        decode_past(&queue(), &HANDLE, bytes, Timestamp::EPOCH).is_some()
    });
}

#[test]
fn journal_entries_of_imports() {
    let entry = [&1_000_i64.to_be_bytes()[..], &[1], b"q", b"payload"].concat();
    fuzz::check("journal entries of imports", &[entry], |bytes| {
        ImportJob::from_record(&Bytes::copy_from_slice(bytes)).is_ok()
    });
}

#[test]
fn members_of_redisson() {
    let valid = [
        &b"\x08ABCDEFGH\x05\0\0\0\0\0\0\0hello"[..],
        b"\x08ABCDEFGH\x05\0\0\0hello",
        b"ABCDEFGH\x05\0\0\0\0\0\0\0hello",
        b"ABCDEFGH\x05\0\0\0hello",
    ];
    fuzz::check("members of Redisson", &valid, |bytes| {
        let mut is_accepted = false;
        for format in [Format::Current, Format::Legacy] {
            for length_bytes in [4, 8] {
                if let Some(payload) = parse_as(format, length_bytes, bytes) {
                    assert!(payload.len() < bytes.len());
                    is_accepted = true;
                }
            }
        }
        is_accepted
    });
}

#[test]
fn payloads_of_redisson() {
    let payloads = [
        &b"\"text\""[..],
        b"{\"@class\":\"com.example.Order\",\"id\":[\"java.lang.Long\",42],\"of\":[\"java.util.ArrayList\",[1,null]]}",
        b"[[[[\"java.util.ArrayList\",[{\"a\":1.5e300}]]]]]",
        b"\x03hell\xef",
        b"\x09\xfe\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x0a\0\0\0\0\0\0\xf8\x3f",
        b"\x01\0[\xc2\x04\0h\xff",
    ];
    let names = ["raw", "string", "json", "jackson", "jackson:a.Order", "kryo5", "kryo5:byte[]"];
    let codecs = names.map(|name| name.parse::<Codec>().unwrap());
    let count_translations = |bytes: &[u8]| {
        let bytes = Bytes::copy_from_slice(bytes);
        let both_ways =
            codecs.iter().flat_map(|codec| [codec.decode(&bytes), codec.encode(&bytes)]);
        both_ways.filter(Result::is_ok).count()
    };
    // The codec `raw` translates everything, both ways.
    fuzz::check("codecs of Redisson", &payloads, |bytes| count_translations(bytes) > 2);
    let foreign = [&b"\x01\0java.util.HashMa\xf0\x01"[..], b"\xac\xed\0\x05t\0\x05hello"];
    fuzz::check("foreign codecs", &foreign, |bytes| count_translations(bytes) == 2);
}
