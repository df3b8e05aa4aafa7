//! Fuzzes the decoders of members and payloads.

use bytes::Bytes;
use dq_testkit::fuzz;

use super::codec::Codec;
use super::member::{Format, LongSize, parse_as};

#[test]
fn members() {
    let members = [
        &b"\x08ABCDEFGH\x05\0\0\0\0\0\0\0hello"[..],
        b"\x08ABCDEFGH\x05\0\0\0hello",
        b"ABCDEFGH\x05\0\0\0\0\0\0\0hello",
        b"ABCDEFGH\x05\0\0\0hello",
    ];
    fuzz::check("members of Redisson", &members, |bytes| {
        let sizes = [LongSize::Four, LongSize::Eight];
        let formats = [Format::Current, Format::Legacy];
        let mut is_accepted = false;
        for (format, long) in formats.iter().flat_map(|format| sizes.map(|long| (*format, long))) {
            if let Some(payload) = parse_as(format, long, bytes) {
                assert!(payload.len() < bytes.len());
                is_accepted = true;
            }
        }
        is_accepted
    });
}

#[test]
fn codecs() {
    let payloads = [
        &b"\"text\""[..],
        b"{\"@class\":\"com.example.Order\",\"id\":[\"java.lang.Long\",42],\"of\":[\"java.util.ArrayList\",[1,null]]}",
        b"[[[[\"java.util.ArrayList\",[{\"a\":1.5e300}]]]]]",
        b"\x03hell\xef",
        b"\x09\xfe\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x0a\0\0\0\0\0\0\xf8\x3f",
        b"\x01\0[\xc2\x04\0h\xff",
    ];
    let class = || Some("com.example.Order".to_owned());
    let codecs = [
        Codec::Raw,
        Codec::Text,
        Codec::Json,
        Codec::Jackson { class: None },
        Codec::Jackson { class: class() },
        Codec::Kryo5 { class: None },
        Codec::Kryo5 { class: Some("byte[]".to_owned()) },
    ];
    let translated = |bytes: &[u8]| {
        let bytes = Bytes::copy_from_slice(bytes);
        let mut accepted = 0;
        for codec in &codecs {
            for translated in [codec.decode(&bytes), codec.encode(&bytes)] {
                accepted += usize::from(translated.map_err(|error| error.to_string()).is_ok());
            }
        }
        accepted
    };
    // The raw codec translates everything, both ways.
    fuzz::check("codecs of Redisson", &payloads, |bytes| translated(bytes) > 2);
    let refused = [&b"\x01\0java.util.HashMa\xf0\x01"[..], b"\xac\xed\0\x05t\0\x05hello"];
    fuzz::check("foreign codecs", &refused, |bytes| translated(bytes) == 2);
}
