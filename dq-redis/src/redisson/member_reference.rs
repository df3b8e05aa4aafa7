//! Packs members in Rust, as a test reference for `scripts/redisson/java.lua`.

use bytes::Bytes;
use dq_core::JobId;
use dq_servers::shared_redis;

use super::member::{
    Format, JAVA_SUFFIX, LongSize, Member, eight_byte_id, java_id, member_id, parse_as, u48,
};
use super::scripts::library;
use crate::handle;
use crate::library;

pub(super) fn pack(format: Format, long: LongSize, id: JobId, payload: &[u8]) -> Bytes {
    let id = &member_id(format, id)[..];
    let mut member = Vec::with_capacity(1 + id.len() + long.size_bytes() + payload.len());
    if format == Format::Current {
        member.push(id.len() as u8);
    }
    member.extend_from_slice(id);
    // Redis strings are shorter than 4 GiB, so the cut bytes are zero.
    member.extend_from_slice(&(payload.len() as u64).to_le_bytes()[..long.size_bytes()]);
    member.extend_from_slice(payload);
    member.into()
}

pub(super) fn parse(expected: Format, long: LongSize, member: &[u8]) -> Option<Member<'_>> {
    let other = match expected {
        Format::Current => Format::Legacy,
        Format::Legacy => Format::Current,
    };
    parse_as(expected, long, member).or_else(|| parse_as(other, long, member))
}

/// `None` for other id lengths than Java's and this crate's.
pub(super) fn job_id(member: &Member<'_>) -> Option<JobId> {
    read_id(member.id)
}

/// The job id read back from a member: legacy members keep only half an id.
fn id_after_round_trip(format: Format, id: JobId) -> JobId {
    match format {
        Format::Current => id,
        Format::Legacy => from_java(eight_byte_id(id)),
    }
}

fn from_java(id: [u8; 8]) -> JobId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&id);
    bytes[8..].copy_from_slice(&JAVA_SUFFIX);
    JobId::from_bytes(bytes)
}

fn read_id(id: &[u8]) -> Option<JobId> {
    match id.len() {
        8 => Some(from_java(id.try_into().ok()?)),
        15 => {
            let head = u48(id);
            let mut bytes = [0; 16];
            bytes[..6].copy_from_slice(&(head >> 4).to_be_bytes()[2..]);
            bytes[6] = 0x70 | (head & 0x0f) as u8;
            bytes[7..].copy_from_slice(&id[6..]);
            Some(JobId::from_bytes(bytes))
        }
        16 => Some(JobId::from_bytes(id.try_into().ok()?)),
        _ => None,
    }
}

/// Version 7, so 15 bytes: time 0x0190b3e27a4f, then 0xc11 after the version.
const UUID: [u8; 16] = [
    0x01, 0x90, 0xb3, 0xe2, 0x7a, 0x4f, 0x7c, 0x11, 0x8d, 0x2e, 0x3f, 0x1a, 0x5b, 0x6c, 0x7d, 0x8e,
];
const FORMATS: [Format; 2] = [Format::Current, Format::Legacy];
const LONG_SIZES: [LongSize; 2] = [LongSize::Four, LongSize::Eight];

#[test]
fn members_are_packed_as_by_the_server() {
    // Redis 7.0.15 on x86-64 for struct.pack('Bc0Lc0', 8, 'ABCDEFGH', 5, 'hello'), as called by
    // Redisson 3.21.1 and newer.
    let packed = pack(Format::Current, LongSize::Eight, from_java(*b"ABCDEFGH"), b"hello");
    assert_eq!(packed[..], *b"\x08ABCDEFGH\x05\0\0\0\0\0\0\0hello");
    // The same on a 32-bit or Windows server, whose `unsigned long` has four bytes.
    let packed = pack(Format::Current, LongSize::Four, from_java(*b"ABCDEFGH"), b"hello");
    assert_eq!(packed[..], *b"\x08ABCDEFGH\x05\0\0\0hello");
    // struct.pack('dLc0', …), Redisson 3.21.0 and older: the double stands alone.
    let packed = pack(Format::Legacy, LongSize::Eight, from_java(*b"ABCDEFGH"), b"hello");
    assert_eq!(packed[..], *b"ABCDEFGH\x05\0\0\0\0\0\0\0hello");
    let packed = pack(Format::Legacy, LongSize::Four, from_java(*b"ABCDEFGH"), b"hello");
    assert_eq!(packed[..], *b"ABCDEFGH\x05\0\0\0hello");
}

#[test]
fn a_uuid_of_version_7_is_shortened_and_others_are_kept() {
    let packed = pack(Format::Current, LongSize::Four, JobId::from_bytes(UUID), b"x");
    let short = b"\x0f\x19\x0b\x3e\x27\xa4\xfc\x11\x8d\x2e\x3f\x1a\x5b\x6c\x7d\x8e";
    assert_eq!(packed[..16], *short);
    assert_eq!(packed[16..], *b"\x01\0\0\0x");
    let mut four = UUID;
    four[6] = 0x4c;
    let packed = pack(Format::Current, LongSize::Four, JobId::from_bytes(four), b"");
    assert_eq!((packed[0], &packed[1..17]), (16, &four[..]));
    let packed = pack(Format::Legacy, LongSize::Four, JobId::from_bytes(UUID), b"");
    assert_eq!(packed[..8], UUID[8..]);
}

#[test]
fn a_payload_of_100_bytes_fits_an_allocation_of_128() {
    let packed = pack(Format::Current, LongSize::Eight, JobId::from_bytes(UUID), &[7; 100]);
    // Redis's string header (sdshdr8, three bytes) and the terminating zero.
    assert_eq!(packed.len() + 4, 128);
}

#[test]
fn packed_members_are_parsed_back() {
    let mut ids = vec![from_java(*b"ABCDEFGH"), from_java([0; 8]), from_java([0xff; 8])];
    // Covers every version and variant, and times that are too large to shorten.
    for at in 0..16 {
        for value in 0..=255 {
            let mut id = UUID;
            id[at] = value;
            ids.push(JobId::from_bytes(id));
        }
    }
    for (format, long) in FORMATS.iter().flat_map(|f| LONG_SIZES.map(|long| (*f, long))) {
        for id in &ids {
            for len in [0, 1, 100, 300] {
                let payload = vec![0xa5; len];
                let packed = pack(format, long, *id, &payload);
                let member = parse(format, long, &packed).unwrap();
                assert_eq!((member.format, member.payload), (format, &payload[..]));
                assert_eq!(job_id(&member), Some(id_after_round_trip(format, *id)));
            }
        }
    }
}

#[test]
fn a_member_that_begins_with_a_seven_is_legacy() {
    let packed = b"\x07BCDEFGH\x05\0\0\0hello";
    for expected in [Format::Current, Format::Legacy] {
        let member = parse(expected, LongSize::Four, packed).unwrap();
        assert_eq!((member.format, member.id), (Format::Legacy, &b"\x07BCDEFGH"[..]));
    }
}

#[test]
fn a_member_that_can_be_read_in_both_formats_is_one_of_the_expected_format() {
    let packed = b"\x0fBCDEFGH\x0d\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0hello";
    let legacy = parse(Format::Legacy, LongSize::Eight, packed).unwrap();
    assert_eq!(legacy.payload, b"\x05\0\0\0\0\0\0\0hello");
    let current = parse(Format::Current, LongSize::Eight, packed).unwrap();
    assert_eq!((current.format, current.payload), (Format::Current, &b"hello"[..]));
}

#[test]
fn members_sort_by_the_time_and_bytes_of_their_uuids() {
    let pack = |id| pack(Format::Current, LongSize::Eight, JobId::from_bytes(id), b"");
    // Only the version and the first four bits of the time are not packed; adding one changes
    // neither.
    for at in 0..16 {
        let mut later = UUID;
        later[at] += 1;
        assert!(pack(UUID) < pack(later), "byte {at}");
    }
}

#[test]
fn strings_in_neither_format_are_not_parsed() {
    let good = pack(Format::Current, LongSize::Eight, JobId::from_bytes(UUID), b"hello");
    let mut longer = good.to_vec();
    longer.push(0);
    for bytes in [&b""[..], b"hello", b"\x08ABC", &good[..good.len() - 1], &longer, &[0xff; 40]] {
        assert_eq!(parse(Format::Current, LongSize::Eight, bytes), None, "{bytes:x?}");
    }
    assert_eq!(
        parse(Format::Current, LongSize::Four, &good),
        None,
        "the server's long has eight bytes"
    );
}

#[test]
fn a_member_id_of_another_length_is_parsed_but_is_no_job_id() {
    // Redisson's scripts accept any length, so these members are harmless.
    let member = parse(Format::Current, LongSize::Four, b"\x03abc\x02\0\0\0hi").unwrap();
    assert_eq!((member.id, member.payload), (&b"abc"[..], &b"hi"[..]));
    assert_eq!(job_id(&member), None);
}

#[test]
fn java_ids_and_uuids_are_distinguished() {
    assert_eq!(java_id(from_java(*b"ABCDEFGH")), Some(*b"ABCDEFGH"));
    assert_eq!(java_id(JobId::from_bytes(UUID)), None);
    assert_eq!(from_java(*b"ABCDEFGH").to_bytes(), *b"ABCDEFGHredisson");
}

fn script(format: &str, body: &str) -> String {
    let settings = format!("local FORMAT = '{format}'\n");
    library::select(&library(&settings), body).concat() + body
}

#[test]
fn the_script_reads_a_member_that_fits_both_formats_in_that_of_the_settings() {
    let member = b"\x0fBCDEFGH\x0d\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0hello";
    for (format, payload) in [("current", &b"hello"[..]), ("legacy", b"\x05\0\0\0\0\0\0\0hello")] {
        let script = script(format, "return { parse(ARGV[1]) }");
        let words: [&[u8]; 4] = [b"EVAL", script.as_bytes(), b"0", member];
        let answer = shared_redis().command_bytes(&words);
        assert_eq!(answer.list()[0].text(), format);
        assert_eq!(answer.list()[2].bytes(), payload);
    }
}

#[test]
fn the_script_packs_and_parses_like_the_reference() {
    let mut ids = vec![from_java(*b"ABCDEFGH"), from_java([0xff; 8]), JobId::from_bytes([0; 16])];
    for at in 0..16 {
        for value in [0, 1, 0x0f, 0x10, 0x70, 0x7f, 0x80, 0xff] {
            let mut id = UUID;
            id[at] = value;
            ids.push(JobId::from_bytes(id));
        }
    }
    let mut redis = shared_redis().connect();
    for (format, name) in [(Format::Current, "current"), (Format::Legacy, "legacy")] {
        let script = script(
            name,
            "local member = pack_member(member_id_of(ARGV[1]), ARGV[2])
             local format, member_id, payload = parse(member)
             local handle, tail = handle_and_tail(member_id)
             return { member, format, job_id_of(member_id), payload, handle .. tail }",
        );
        for (id, payload) in ids.iter().flat_map(|id| [(id, ""), (id, "a payload")]) {
            let bytes = id.to_bytes();
            let words: [&[u8]; 5] = [b"EVAL", script.as_bytes(), b"0", &bytes, payload.as_bytes()];
            let answer = redis.command_bytes(&words);
            let [member, parsed_format, job_id, parsed_payload, handle_and_tail] = answer.list()
            else {
                panic!("{answer:?}");
            };
            assert_eq!(member.bytes(), pack(format, LongSize::Eight, *id, payload.as_bytes()));
            assert_eq!(
                (parsed_format.text(), parsed_payload.text()),
                (name.to_owned(), payload.to_owned())
            );
            let id = id_after_round_trip(format, *id);
            assert_eq!(job_id.bytes(), id.to_bytes());
            assert_eq!(handle_and_tail.bytes(), handle::handle_and_tail(id));
        }
    }
}
