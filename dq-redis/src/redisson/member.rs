//! Members of the sorted set `redisson_delay_queue_timeout:{queue}`: an id, a length and the
//! payload in one string, packed by Redis's Lua library `struct`.
//!
//! Redisson's scripts never read the id; it only distinguishes equal payloads. This crate writes
//! the job id there, shortened where nothing is lost: a job with 100 payload bytes then fits an
//! allocation of 128 bytes. This form is called the *member id*.
//!
//! | member id | written by | as [`JobId`] |
//! |---|---|---|
//! | 8 bytes | Java, in either format, and this crate in the legacy format | the bytes, then `redisson` in ASCII |
//! | 15 bytes | this crate | a version 7 UUID without its version and the first four bits of its time |
//! | 16 bytes | this crate, for any other id | the bytes |
//!
//! The `r` in the ninth byte is no UUID variant in use, so Java's ids and this crate's never
//! collide.

use dq_core::{Error, ErrorKind, JobId};
use serde::Deserialize;

/// Second half of a [`JobId`] from Java.
const JAVA_SUFFIX: [u8; 8] = *b"redisson";

/// The format in which Redisson stores the jobs of a delayed queue.
///
/// All members of a queue must have the same format. A member in the other format makes the Java
/// clients' transfer script fail until it is removed.
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

/// Size of the server's C type `unsigned long`: the server packs lengths with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LongSize {
    /// 32-bit servers, and Windows.
    Four,
    Eight,
}

impl LongSize {
    /// Packs the number 1, for [`Self::from_probe`].
    pub(crate) const PROBE: &'static str = "return struct.pack('L', 1)";

    /// Reads the reply to [`Self::PROBE`]; `None` for a big-endian server.
    pub(crate) fn from_probe(one: &[u8]) -> Option<Self> {
        match one {
            [1, 0, 0, 0] => Some(Self::Four),
            [1, 0, 0, 0, 0, 0, 0, 0] => Some(Self::Eight),
            _ => None,
        }
    }
}

/// Parses a member in this format and returns its payload; `None` if the format does not fit.
///
/// The length must reach exactly to the member's end. Both formats can still fit: if a legacy
/// payload ends with a length-prefixed field, and the id's first byte happens to lead there. A
/// member that begins with a 7 counts as legacy, because both readings put the length at the same
/// place. No client writes ids of seven bytes, and one in 256 of Java's random doubles begins with
/// a 7.
pub(crate) fn parse_as(format: Format, long: LongSize, member: &[u8]) -> Option<&[u8]> {
    let (_id, rest) = match format {
        Format::Current => {
            let (len, rest) = member.split_first().filter(|(len, _)| **len != 7)?;
            rest.split_at_checked(usize::from(*len))?
        }
        Format::Legacy => member.split_at_checked(8)?,
    };
    payload(long, rest)
}

/// The payload after its length; `None` unless the length is exact.
fn payload(long: LongSize, bytes: &[u8]) -> Option<&[u8]> {
    let size = match long {
        LongSize::Four => 4,
        LongSize::Eight => 8,
    };
    let (len, payload) = bytes.split_at_checked(size)?;
    let mut number = [0; 8];
    number[..len.len()].copy_from_slice(len);
    (u64::from_le_bytes(number) == payload.len() as u64).then_some(payload)
}

/// The 8-byte id from Java; `None` for other jobs.
pub(crate) fn java_id(id: JobId) -> Option<[u8; 8]> {
    let bytes = id.to_bytes();
    let (java, suffix) = bytes.split_first_chunk()?;
    (suffix == JAVA_SUFFIX).then_some(*java)
}

/// The member id, as in the table at the top of this file.
pub(crate) fn member_id(format: Format, id: JobId) -> Vec<u8> {
    let bytes = id.to_bytes();
    if let Some(java) = java_id(id) {
        return java.to_vec();
    }
    if format == Format::Legacy {
        // Eight bytes where Redisson expects a double: a UUID's random half. Any eight bytes are a
        // double to the server, and no script reads its value.
        return bytes[8..].to_vec();
    }
    let millis = bytes[..6].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    if bytes[6] >> 4 == 7 && millis < 1 << 44 {
        // Version 7, before the year 2527: leave out the version and four zero bits of the time.
        // The time stays in front, so that members with equal due times sort by it.
        let head = (millis << 4) | u64::from(bytes[6] & 0x0f);
        return [&head.to_be_bytes()[2..], &bytes[7..]].concat();
    }
    bytes.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_shows_the_size_of_a_long() {
        assert_eq!(LongSize::from_probe(b"\x01\0\0\0"), Some(LongSize::Four));
        assert_eq!(LongSize::from_probe(b"\x01\0\0\0\0\0\0\0"), Some(LongSize::Eight));
        assert_eq!(LongSize::from_probe(b"\0\0\0\0\0\0\0\x01"), None, "big-endian");
    }
}
