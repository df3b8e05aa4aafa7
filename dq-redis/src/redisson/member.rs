//! Members: the entries of the sorted set `redisson_delay_queue_timeout:{queue}`, in which jobs
//! wait. A member is an id, a length and the payload in one string, packed by Redis's Lua library
//! `struct`.
//!
//! Redisson's scripts never read the id; it only distinguishes equal payloads. This crate writes
//! the job id there, shortened to the *member id* where nothing is lost.
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

const JAVA_SUFFIX: [u8; 8] = *b"redisson";

/// A Lua script that returns the size of the lengths in members, the server's C type `unsigned
/// long`: eight bytes, or four on 32-bit servers and Windows.
pub(crate) const LENGTH_BYTES_PROBE: &str = "return struct.size('L')";

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

/// Returns the payload; `None` if the format does not fit. `length_bytes` is the answer to
/// [`LENGTH_BYTES_PROBE`].
///
/// The length must reach exactly to the member's end. Both formats can still fit: if a legacy
/// payload ends with a length-prefixed field, and the id's first byte happens to lead there. A
/// member that begins with a 7 counts as legacy, because both readings put the length at the same
/// place: no client writes ids of seven bytes, and Java's doubles are random.
pub(crate) fn parse_as(format: Format, length_bytes: usize, member: &[u8]) -> Option<&[u8]> {
    let (_id, rest) = match format {
        Format::Current => {
            let (id_length, rest) = member.split_first().filter(|(length, _)| **length != 7)?;
            rest.split_at_checked(usize::from(*id_length))?
        }
        Format::Legacy => member.split_at_checked(8)?,
    };
    let (length, payload) = rest.split_at_checked(length_bytes)?;
    let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    (length == payload.len() as u64).then_some(payload)
}

/// The 8-byte id from Java; `None` for other jobs.
pub(crate) fn java_id(id: JobId) -> Option<[u8; 8]> {
    let bytes = id.to_bytes();
    let (java, suffix) = bytes.split_first_chunk()?;
    (suffix == JAVA_SUFFIX).then_some(*java)
}

pub(crate) fn member_id(format: Format, id: JobId) -> Vec<u8> {
    let bytes = id.to_bytes();
    if let Some(java) = java_id(id) {
        return java.to_vec();
    }
    if format == Format::Legacy {
        // No script reads the double of the legacy format. This is the random half of a UUID.
        return bytes[8..].to_vec();
    }
    let millis = bytes[..6].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    if bytes[6] >> 4 == 7 && millis < 1 << 44 {
        // A UUID of version 7, made before the year 2527, loses its version and four zero bits of
        // its time. The time stays in front: members with equal due times sort by it.
        let head = (millis << 4) | u64::from(bytes[6] & 0x0f);
        return [&head.to_be_bytes()[2..], &bytes[7..]].concat();
    }
    bytes.to_vec()
}
