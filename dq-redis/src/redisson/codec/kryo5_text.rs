//! Strings in Kryo 5.
//!
//! Two to 32 ASCII characters have no length; the last one has its high bit set. All other strings
//! begin with the UTF-16 unit count plus one, whose first byte has the high bit set. Each unit
//! follows in one to three bytes as in UTF-8. Characters beyond the basic plane are two units.

const MAX_WITHOUT_LENGTH: usize = 32;
const HIGH: u8 = 0x80;

pub(super) fn write(text: &str, out: &mut Vec<u8>) {
    if text.is_ascii() && (2..=MAX_WITHOUT_LENGTH).contains(&text.len()) {
        let (last, head) = text.as_bytes().split_last().unwrap_or((&0, &[]));
        out.extend(head);
        out.push(last | HIGH);
        return;
    }
    let units = text.encode_utf16().count();
    // For Kryo zero is `null` and one is the empty string.
    write_len(units as u64 + 1, out);
    for unit in text.encode_utf16() {
        match unit {
            0..=0x7f => out.push(unit as u8),
            0x80..=0x7ff => out.extend([0xc0 | (unit >> 6) as u8, tail(unit)]),
            _ => out.extend([0xe0 | (unit >> 12) as u8, tail(unit >> 6), tail(unit)]),
        }
    }
}

/// `None` if Kryo did not write the bytes, or the text is `null` or not valid Unicode.
pub(super) fn read(rest: &mut &[u8]) -> Option<String> {
    if rest.first()? & HIGH == 0 {
        let end = rest.iter().position(|byte| byte & HIGH != 0)?;
        let mut text = rest.split_off(..=end)?.to_vec();
        text[end] &= !HIGH;
        return String::from_utf8(text).ok();
    }
    let units = read_len(rest)?.checked_sub(1)?;
    // Grows while reading because the length cannot be trusted.
    let mut text = Vec::new();
    for _ in 0..units {
        text.push(read_unit(rest)?);
    }
    String::from_utf16(&text).ok()
}

fn read_unit(rest: &mut &[u8]) -> Option<u16> {
    let mut next = || rest.split_off_first().map(|byte| u16::from(*byte));
    let first = next()?;
    Some(match first >> 4 {
        0..=7 => first,
        12 | 13 => (first & 0x1f) << 6 | next()? & 0x3f,
        14 => (first & 0x0f) << 12 | (next()? & 0x3f) << 6 | next()? & 0x3f,
        _ => return None,
    })
}

/// A continuation byte with the unit's lowest six bits.
fn tail(unit: u16) -> u8 {
    HIGH | (unit & 0x3f) as u8
}

/// A varint: six bits in the first byte, whose high bit is set.
fn write_len(len: u64, out: &mut Vec<u8>) {
    let first = HIGH | (len & 0x3f) as u8;
    let mut more = len >> 6;
    if more == 0 {
        return out.push(first);
    }
    out.push(first | 0x40);
    while more >= 0x80 {
        out.push(more as u8 | HIGH);
        more >>= 7;
    }
    out.push(more as u8);
}

fn read_len(rest: &mut &[u8]) -> Option<u64> {
    let first = *rest.split_off_first()?;
    let mut len = u64::from(first & 0x3f);
    if first & 0x40 == 0 {
        return Some(len);
    }
    // Kryo's lengths have 32 bits: at most four more bytes.
    for at in 0..4 {
        let byte = *rest.split_off_first()?;
        len |= u64::from(byte & 0x7f) << (6 + 7 * at);
        if byte & HIGH == 0 {
            return Some(len);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_round_trip(text: &str, kryo: &[u8]) {
        let mut out = Vec::new();
        write(text, &mut out);
        assert_eq!(out, kryo, "{text:?}");
        let mut rest = kryo;
        assert_eq!(read(&mut rest).as_deref(), Some(text));
        assert!(rest.is_empty());
    }

    #[test]
    fn short_ascii_has_no_length_and_other_text_has() {
        // Kryo 5.6, Output.writeString.
        assert_round_trip("hello", b"hell\xef");
        assert_round_trip("ab", b"a\xe2");
        assert_round_trip("a", b"\x82a");
        assert_round_trip("", b"\x81");
        assert_round_trip("h\u{e9}llo", b"\x86h\xc3\xa9llo");
        assert_round_trip(&"x".repeat(32), &[[b'x'; 31].as_slice(), &[b'x' | 0x80]].concat());
        assert_round_trip(&"x".repeat(33), &[&[0xa2][..], &[b'x'; 33]].concat());
        assert_round_trip(&"x".repeat(40), &[&[0xa9][..], &[b'x'; 40]].concat());
    }

    #[test]
    fn longer_lengths_take_more_bytes() {
        assert_round_trip(&"x".repeat(62), &[&[0xbf][..], &[b'x'; 62]].concat());
        assert_round_trip(&"x".repeat(63), &[&[0xc0, 1][..], &[b'x'; 63]].concat());
        // 64 * 128 - 1 and one more: the second byte is full.
        assert_round_trip(&"x".repeat(8_190), &[&[0xff, 0x7f][..], &[b'x'; 8_190]].concat());
        assert_round_trip(&"x".repeat(8_191), &[&[0xc0, 0x80, 1][..], &[b'x'; 8_191]].concat());
    }

    #[test]
    fn characters_beyond_the_basic_plane_are_two_units() {
        assert_round_trip("\u{20ac}", b"\x82\xe2\x82\xac");
        assert_round_trip("\u{1f600}", b"\x83\xed\xa0\xbd\xed\xb8\x80");
    }

    #[test]
    fn null_damaged_and_endless_text_is_refused() {
        for bytes in [&b""[..], b"\x80", b"abc", b"\x83a", b"\x82\xff", b"\x82\xed\xa0\xbd"] {
            assert_eq!(read(&mut &bytes[..]), None, "{bytes:x?}");
        }
        assert_eq!(read(&mut &[0xff, 0xff, 0xff, 0xff, 0x0f, b'x'][..]), None);
        assert_eq!(read(&mut &[0xff; 10][..]), None);
    }
}
