//! Members of the sorted set `redisson_delay_queue_timeout:{queue}`: an id, a length and the
//! payload in one string, as the Lua library `struct` of Redis packs them.
//!
//! Redisson's scripts never read the id; it only makes equal payloads different members. This crate
//! writes the job's own id there, shortened where that loses nothing: a job with a payload of 100
//! bytes then fits an allocation of 128 bytes. The id in this form is called the *member id*.
//!
//! | member id | written by | as [`JobId`] |
//! |---|---|---|
//! | 8 bytes | Java, in either format, and this crate in the legacy format | the bytes, then `redisson` in ASCII |
//! | 15 bytes | this crate | a version 7 UUID without its version and the first four bits of its time |
//! | 16 bytes | this crate, for any other id | the bytes |
//!
//! The `r` in the ninth byte is no UUID variant in use, so Java's ids and those of this crate never
//! collide.

use std::str::FromStr;

use dq_core::{Error, ErrorKind, JobId, Result};
use serde::Deserialize;

/// Second half of a [`JobId`] whose first half is an id drawn by Java.
pub(super) const JAVA_SUFFIX: [u8; 8] = *b"redisson";

/// The format in which Redisson stores the jobs of a delayed queue.
///
/// All members of a queue must have the same format: one of the other format makes the transfer
/// script of the Java clients fail until it is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Format {
    /// Redisson 3.21.1 and newer, `Bc0Lc0`: a length byte, the id, the length, the payload.
    #[default]
    Current,
    /// Redisson 3.21.0 and older, `dLc0`: a double as id, the length, the payload.
    Legacy,
}

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

/// Size of the server's C type `unsigned long`, which decides how the server packs lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LongSize {
    /// 32-bit servers, and Windows.
    Four,
    /// All others.
    Eight,
}

impl LongSize {
    /// Script that packs the number 1, for [`Self::from_probe`].
    pub(crate) const PROBE: &'static str = "return struct.pack('L', 1)";

    /// The size, from the reply to [`Self::PROBE`]; `None` for a big-endian server.
    #[must_use]
    pub(crate) fn from_probe(one: &[u8]) -> Option<Self> {
        match one {
            [1, 0, 0, 0] => Some(Self::Four),
            [1, 0, 0, 0, 0, 0, 0, 0] => Some(Self::Eight),
            _ => None,
        }
    }

    /// The number of bytes.
    pub(super) const fn size_bytes(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// A parsed member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member<'a> {
    pub(crate) format: Format,
    /// The member id, as in the table at the top of this file.
    pub(crate) id: &'a [u8],
    /// The payload in the queue's codec.
    pub(crate) payload: &'a [u8],
}

/// Parses a member in this format; `None` if it is not packed in it.
///
/// The length must reach exactly to the end of the member. Both formats may still fit: if the
/// payload of a legacy member ends with a field that has its length before it, and the first byte
/// of the id happens to lead there. A member that begins with a 7 counts as legacy, since both
/// readings put the length at the same place: no client writes ids of seven bytes, and one in 256
/// of the doubles that Java draws begins with a 7.
#[must_use]
pub(crate) fn parse_as(format: Format, long: LongSize, member: &[u8]) -> Option<Member<'_>> {
    let (id, rest) = match format {
        Format::Current => {
            let (len, rest) = member.split_first().filter(|(len, _)| **len != 7)?;
            rest.split_at_checked(usize::from(*len))?
        }
        Format::Legacy => member.split_at_checked(8)?,
    };
    Some(Member { format, id, payload: payload(long, rest)? })
}

/// The payload after its length; `None` unless the length is exact.
fn payload(long: LongSize, bytes: &[u8]) -> Option<&[u8]> {
    let (len, payload) = bytes.split_at_checked(long.size_bytes())?;
    let mut number = [0; 8];
    number[..len.len()].copy_from_slice(len);
    (u64::from_le_bytes(number) == payload.len() as u64).then_some(payload)
}

/// The id of 8 bytes that Java drew at random; `None` for a job that Java did not schedule.
#[must_use]
pub(crate) fn java_id(id: JobId) -> Option<[u8; 8]> {
    let bytes = id.to_bytes();
    let (java, suffix) = bytes.split_first_chunk()?;
    (suffix == JAVA_SUFFIX).then_some(*java)
}

/// The member id of a job id, as in the table at the top of this file.
pub(crate) fn member_id(format: Format, id: JobId) -> Vec<u8> {
    let bytes = id.to_bytes();
    if format == Format::Legacy || java_id(id).is_some() {
        return eight_byte_id(id).to_vec();
    }
    let millis = u48(&bytes);
    if bytes[6] >> 4 == 7 && millis < 1 << 44 {
        // Version 7, before the year 2527: the version and four zero bits of the time are left out.
        // The time stays in front, so that members with equal due times sort by it.
        let head = (millis << 4) | u64::from(bytes[6] & 0x0f);
        return [&head.to_be_bytes()[2..], &bytes[7..]].concat();
    }
    bytes.to_vec()
}

/// The id in eight bytes, where Redisson expects a double: Java's own id, or the random half of a
/// UUID. Any eight bytes are a double to the server, and no script reads its value.
pub(super) fn eight_byte_id(id: JobId) -> [u8; 8] {
    java_id(id).unwrap_or_else(|| {
        let [.., a, b, c, d, e, f, g, h] = id.to_bytes();
        [a, b, c, d, e, f, g, h]
    })
}

/// The first six bytes as a big-endian number.
pub(super) fn u48(bytes: &[u8]) -> u64 {
    bytes[..6].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_parsed_from_their_names() {
        for format in [Format::Current, Format::Legacy] {
            assert_eq!(format!("{format:?}").to_lowercase().parse::<Format>().unwrap(), format);
        }
        let error = "old".parse::<Format>().unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.message().contains("old"), "{error}");
        assert_eq!(error.remedy_text(), Some("choose one of current and legacy"));
    }

    #[test]
    fn the_probe_shows_the_size_of_a_long() {
        assert_eq!(LongSize::from_probe(b"\x01\0\0\0"), Some(LongSize::Four));
        assert_eq!(LongSize::from_probe(b"\x01\0\0\0\0\0\0\0"), Some(LongSize::Eight));
        assert_eq!(LongSize::from_probe(b"\0\0\0\0\0\0\0\x01"), None, "big-endian");
    }
}
