//! The members of `redisson_delay_queue_timeout:{queue}`: an id, a length and the payload in one
//! string, packed by Redis's `struct` library.
//!
//! Redisson's scripts never read the id; it only keeps equal payloads apart. So what this crate
//! writes there is the job's own id, shortened where that loses nothing: a job with a payload of
//! 100 bytes then fits an allocation of 128 bytes.
//!
//! | id in the member | who wrote it | as [`JobId`] |
//! |---|---|---|
//! | 8 bytes | Java, or anybody in the legacy format | the bytes, then `redisson` in ASCII |
//! | 15 bytes | this crate | a version 7 UUID whose version is left out |
//! | 16 bytes | this crate | the bytes |
//!
//! `r` at the ninth byte is none of the variants that UUIDs have in use, so the ids of Java and
//! those of this crate cannot meet.

use std::str::FromStr;

use dq_core::{Error, ErrorKind, JobId, Result};
use serde::Deserialize;

/// What marks a [`JobId`] whose first half is an id that Java drew.
pub(super) const JAVA: [u8; 8] = *b"redisson";

/// How a member is packed. A queue has one format: Java clients stumble over members of the other
/// one again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Redisson 3.21.1 and newer, `Bc0Lc0`: a length byte, the id, the length, the payload.
    #[default]
    Current,
    /// Redisson 3.21.0 and older, `dLc0`: a double as id, the length, the payload.
    Legacy,
}

/// Status reply of `scripts/redisson/schedule.lua` for a queue that holds members of the other format.
pub(crate) const OTHER_FORMAT: &str = "OTHER_FORMAT";

impl Format {
    /// The error for a queue that holds members of the other format.
    pub(crate) fn refusal(self) -> Error {
        let (found, remedy) = match self {
            Self::Current => (
                "Redisson 3.21.0 or older",
                "set `format = \"legacy\"`, or let the queue run empty and upgrade its Java clients first",
            ),
            Self::Legacy => (
                "Redisson 3.21.1 or newer",
                "set `format = \"current\"`, or let the queue run empty first",
            ),
        };
        let what = format!("the queue holds entries in the format of {found}");
        Error::new(ErrorKind::Incompatible, what).remedy(remedy).operation("schedule")
    }
}

impl FromStr for Format {
    type Err = Error;

    /// Reads `current` or `legacy`.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "current" => Ok(Self::Current),
            "legacy" => Ok(Self::Legacy),
            _ => Err(Error::new(ErrorKind::Config, format!("there is no format {text:?}"))
                .remedy("choose one of current and legacy")),
        }
    }
}

/// How many bytes the server's C type `unsigned long` has: a property of the server, since the
/// packing is done there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Width {
    /// 32-bit servers, and Windows.
    Four,
    /// All others.
    Eight,
}

impl Width {
    /// The expression whose answer [`Self::from_probe`] understands.
    pub(crate) const PROBE: &'static str = "return struct.pack('L', 1)";

    /// The width of a server that packs the number 1 like this; `None` where it is big-endian.
    #[must_use]
    pub(crate) fn from_probe(one: &[u8]) -> Option<Self> {
        match one {
            [1, 0, 0, 0] => Some(Self::Four),
            [1, 0, 0, 0, 0, 0, 0, 0] => Some(Self::Eight),
            _ => None,
        }
    }

    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// A member taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member<'a> {
    /// The format that it is packed in.
    pub(crate) format: Format,
    /// The id as it stands there.
    pub(crate) id: &'a [u8],
    /// What the queue's codec made.
    pub(crate) payload: &'a [u8],
}

/// Takes a member apart; `None` if it is packed in neither format.
///
/// A format must account for every byte, which is what tells the two from each other: all but
/// the members that begin with a 7, which satisfy both or neither. Nobody writes ids of seven bytes,
/// but one in 256 of the doubles that Java draws begins so: they are legacy.
#[must_use]
pub(crate) fn parse(width: Width, member: &[u8]) -> Option<Member<'_>> {
    let current = || {
        let (len, rest) = member.split_first().filter(|(len, _)| **len != 7)?;
        let (id, rest) = rest.split_at_checked(usize::from(*len))?;
        Some(Member { format: Format::Current, id, payload: payload(width, rest)? })
    };
    let legacy = || {
        let (id, rest) = member.split_at_checked(8)?;
        Some(Member { format: Format::Legacy, id, payload: payload(width, rest)? })
    };
    current().or_else(legacy)
}

/// What follows a length that fits exactly.
fn payload(width: Width, bytes: &[u8]) -> Option<&[u8]> {
    let (len, payload) = bytes.split_at_checked(width.bytes())?;
    let mut number = [0; 8];
    number[..len.len()].copy_from_slice(len);
    (u64::from_le_bytes(number) == payload.len() as u64).then_some(payload)
}

/// The id that Java drew, if it is one.
#[must_use]
pub(crate) fn to_java(id: JobId) -> Option<[u8; 8]> {
    let bytes = id.to_bytes();
    let (java, mark) = bytes.split_first_chunk()?;
    (mark == JAVA).then_some(*java)
}

/// The id as it is written.
pub(crate) fn member_id(format: Format, id: JobId) -> Vec<u8> {
    let bytes = id.to_bytes();
    if format == Format::Legacy || to_java(id).is_some() {
        return eight(id).to_vec();
    }
    let millis = u48(&bytes);
    if bytes[6] >> 4 == 7 && millis < 1 << 44 {
        // Version 7, before the year 2527: the version and four zero bits of the time are left
        // out. The time stays in front, so that equal due times sort by it.
        let head = (millis << 4) | u64::from(bytes[6] & 0x0f);
        return [&head.to_be_bytes()[2..], &bytes[7..]].concat();
    }
    bytes.to_vec()
}

/// The eight bytes that stand for an id where Redisson expects a double: Java's own, or the random
/// half of a UUID. Any eight bytes are a double to the server, and no script looks at its value.
pub(super) fn eight(id: JobId) -> [u8; 8] {
    to_java(id).unwrap_or_else(|| {
        let [.., a, b, c, d, e, f, g, h] = id.to_bytes();
        [a, b, c, d, e, f, g, h]
    })
}

/// The first six bytes as a number.
pub(super) fn u48(bytes: &[u8]) -> u64 {
    bytes[..6].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_double_that_begins_with_a_seven_is_a_double() {
        let packed = b"\x07BCDEFGH\x05\0\0\0hello";
        let member = parse(Width::Four, packed).unwrap();
        assert_eq!((member.format, member.id), (Format::Legacy, &b"\x07BCDEFGH"[..]));
    }

    #[test]
    fn a_format_is_read_by_its_name() {
        for format in [Format::Current, Format::Legacy] {
            assert_eq!(format!("{format:?}").to_lowercase().parse::<Format>().unwrap(), format);
        }
        let error = "old".parse::<Format>().unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.what().contains("old"), "{error}");
        assert_eq!(error.remedy_text(), Some("choose one of current and legacy"));
    }

    #[test]
    fn a_server_tells_its_width() {
        assert_eq!(Width::from_probe(b"\x01\0\0\0"), Some(Width::Four));
        assert_eq!(Width::from_probe(b"\x01\0\0\0\0\0\0\0"), Some(Width::Eight));
        assert_eq!(Width::from_probe(b"\0\0\0\0\0\0\0\x01"), None, "big-endian");
    }
}
