//! Tests members, which `scripts/redisson/members.lua` and `member.rs` pack and parse.

use dq_core::JobId;
use dq_servers::{Connection, Reply, shared_redis};

use super::member::{Format, java_id, member_id, parse_as};
use super::scripts::library;
use crate::handle;
use crate::library;

/// An id of version 7 (the 7 of 0x7c), whose member id has 15 bytes.
const UUID: [u8; 16] = [
    0x01, 0x90, 0xb3, 0xe2, 0x7a, 0x4f, 0x7c, 0x11, 0x8d, 0x2e, 0x3f, 0x1a, 0x5b, 0x6c, 0x7d, 0x8e,
];
/// The job id for Java's member id `ABCDEFGH`.
const FROM_JAVA: [u8; 16] = *b"ABCDEFGHredisson";

/// Runs Lua with the functions of `scripts/redisson`. Returns the items of its reply.
pub(super) fn eval(
    redis: &mut Connection,
    format: Format,
    body: &str,
    arguments: &[&[u8]],
) -> Vec<Reply> {
    let settings = format!("local FORMAT = '{}'\n", format!("{format:?}").to_lowercase());
    let script = library::select(&library(&settings), body).concat() + body;
    let words = [&[b"EVAL", script.as_bytes(), b"0"], arguments].concat();
    redis.command_bytes(&words).list().to_vec()
}

#[test]
fn members_of_every_server_are_parsed() {
    // Redis 7.0.15 on x86-64 packs the first two, with struct.pack('Bc0Lc0', 8, 'ABCDEFGH', 5,
    // 'hello') and struct.pack('dLc0', …). A 32-bit or Windows server packs the others.
    let members: [(Format, usize, &[u8]); 4] = [
        (Format::Current, 8, b"\x08ABCDEFGH\x05\0\0\0\0\0\0\0hello"),
        (Format::Legacy, 8, b"ABCDEFGH\x05\0\0\0\0\0\0\0hello"),
        (Format::Current, 4, b"\x08ABCDEFGH\x05\0\0\0hello"),
        (Format::Legacy, 4, b"ABCDEFGH\x05\0\0\0hello"),
    ];
    for (format, length_bytes, member) in members {
        for (other_format, other_length_bytes, _) in members {
            let payload = parse_as(other_format, other_length_bytes, member);
            let fits = (other_format, other_length_bytes) == (format, length_bytes);
            assert_eq!(payload, fits.then_some(&b"hello"[..]), "{member:x?} as {other_format:?}");
        }
        let longer = [member, b"\0"].concat();
        for damaged in [&member[..member.len() - 1], &longer, b"", b"hello", b"\x08ABC"] {
            assert_eq!(parse_as(format, length_bytes, damaged), None, "{damaged:x?}");
        }
    }

    // No client writes ids of seven bytes.
    let begins_with_7 = b"\x07BCDEFGH\x05\0\0\0hello";
    assert_eq!(parse_as(Format::Current, 4, begins_with_7), None);
    assert_eq!(parse_as(Format::Legacy, 4, begins_with_7), Some(&b"hello"[..]));
}

#[test]
fn a_uuid_of_version_7_is_shortened_and_others_are_kept() {
    let id = |format, id| member_id(format, JobId::from_bytes(id));
    let short = b"\x19\x0b\x3e\x27\xa4\xfc\x11\x8d\x2e\x3f\x1a\x5b\x6c\x7d\x8e";
    assert_eq!(id(Format::Current, UUID), short);
    let mut version_4 = UUID;
    version_4[6] = 0x4c;
    assert_eq!(id(Format::Current, version_4), version_4);
    assert_eq!(id(Format::Legacy, UUID), UUID[8..]);
    assert_eq!(id(Format::Current, FROM_JAVA), b"ABCDEFGH");
    assert_eq!(java_id(JobId::from_bytes(FROM_JAVA)), Some(*b"ABCDEFGH"));
    assert_eq!(java_id(JobId::from_bytes(UUID)), None);

    // Member ids sort like the ids, because only the version and four zero bits are left out.
    for byte in 0..16 {
        let mut later = UUID;
        later[byte] += 1;
        assert!(id(Format::Current, UUID) < id(Format::Current, later), "byte {byte}");
    }
}

#[test]
fn the_script_makes_members_with_these_ids_and_reads_them_back() {
    const BODY: &str = "local member_id = member_id_of(ARGV[1])
        local member = pack_member(member_id, ARGV[2])
        local _, parsed_id, payload = parse(member)
        local handle, tail = handle_and_tail(parsed_id)
        return { member_id, member, payload, job_id_of(parsed_id), handle .. tail }";
    let mut ids = vec![FROM_JAVA, [0; 16]];
    for byte in 0..16 {
        for value in [0, 1, 0x0f, 0x10, 0x70, 0x7f, 0x80, 0xff] {
            let mut id = UUID;
            id[byte] = value;
            ids.push(id);
        }
    }
    let mut redis = shared_redis().connect();
    for format in [Format::Current, Format::Legacy] {
        for (id, payload) in ids.iter().flat_map(|id| [(id, &b""[..]), (id, b"a payload")]) {
            let answer = eval(&mut redis, format, BODY, &[id, payload]);

            let expected = member_id(format, JobId::from_bytes(*id));
            assert_eq!(answer[0].bytes(), expected, "{id:x?}");
            let parsed = parse_as(format, 8, answer[1].bytes());
            assert_eq!((parsed, answer[2].bytes()), (Some(payload), payload));
            // Members of the legacy format keep only half an id.
            let id = match format {
                Format::Current => *id,
                Format::Legacy => [&expected[..], b"redisson"].concat().try_into().unwrap(),
            };
            assert_eq!(answer[3].bytes(), id);
            assert_eq!(answer[4].bytes(), handle::handle_and_tail(JobId::from_bytes(id)));
        }
    }
}

#[test]
fn settings_decide_an_ambiguous_member() {
    let member = b"\x0fBCDEFGH\x0d\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0hello";
    let mut redis = shared_redis().connect();
    for (format, payload) in
        [(Format::Current, &b"hello"[..]), (Format::Legacy, b"\x05\0\0\0\0\0\0\0hello")]
    {
        let answer = eval(&mut redis, format, "return { parse(ARGV[1]) }", &[member]);
        assert_eq!(answer[2].bytes(), payload, "{format:?}");
        assert_eq!(parse_as(format, 8, member), Some(payload), "{format:?}");
    }
}
