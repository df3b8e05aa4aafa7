//! Strings in Kryo 5, a part of the codec `kryo5`.
//!
//! Two to 32 ASCII characters have no length; the last one has its high bit set. All other strings
//! begin with the UTF-16 unit count plus one, whose first byte has the high bit set. Each unit
//! follows in one to three bytes as in UTF-8. Characters beyond the basic plane are two units.

const MAX_WITHOUT_LENGTH: usize = 32;

/// The high bit of a byte. It marks the last character, a length, or that more bytes follow.
const HIGH: u8 = 0x80;

pub(super) fn write(text: &str, out: &mut Vec<u8>) {
    if text.is_ascii() && (2..=MAX_WITHOUT_LENGTH).contains(&text.len()) {
        let (last, head) = text.as_bytes().split_last().unwrap_or((&0, &[]));
        out.extend(head);
        out.push(last | HIGH);
        return;
    }
    let units = text.encode_utf16().count();
    // Kryo writes zero for `null` and one for the empty string.
    write_len(units as u64 + 1, out);
    for unit in text.encode_utf16() {
        match unit {
            0..=0x7f => out.push(unit as u8),
            0x80..=0x7ff => out.extend([0xc0 | (unit >> 6) as u8, continuation(unit)]),
            _ => {
                out.extend([0xe0 | (unit >> 12) as u8, continuation(unit >> 6), continuation(unit)])
            }
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
    // The vector grows while reading because the length cannot be trusted.
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

fn continuation(unit: u16) -> u8 {
    HIGH | (unit & 0x3f) as u8
}

/// Six bits in the first byte, with the high bit, then seven in each byte.
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
    for index in 0..4 {
        let byte = *rest.split_off_first()?;
        len |= u64::from(byte & 0x7f) << (6 + 7 * index);
        if byte & HIGH == 0 {
            return Some(len);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    // `golden.rs` tests shorter texts of real clients.
    #[test]
    fn the_length_of_a_long_text_takes_two_or_three_bytes() {
        // The second byte is full with 64 * 128 - 1 units and one more.
        for (units, length) in [(8_190, &[0xff, 0x7f][..]), (8_191, &[0xc0, 0x80, 1])] {
            let text = "x".repeat(units);
            let mut written = Vec::new();
            write(&text, &mut written);
            assert_eq!(written, [length, text.as_bytes()].concat());
            let mut rest = &written[..];
            assert_eq!((read(&mut rest), rest), (Some(text), &[][..]));
        }
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
