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

use bytes::Bytes;
use dq_core::JobId;
use serde::Deserialize;

/// What marks a [`JobId`] whose first half is an id that Java drew.
const JAVA: [u8; 8] = *b"redisson";

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

    const fn bytes(self) -> usize {
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

impl Member<'_> {
    /// The job's id; `None` for an id of a length that neither Java nor this crate writes.
    #[must_use]
    pub(crate) fn job_id(&self) -> Option<JobId> {
        read_id(self.id)
    }
}

/// Packs a job as a member.
#[must_use]
pub(crate) fn pack(format: Format, width: Width, id: JobId, payload: &[u8]) -> Bytes {
    let (id, len) = write_id(format, id);
    let id = &id[..len];
    let mut member = Vec::with_capacity(1 + id.len() + width.bytes() + payload.len());
    if format == Format::Current {
        member.push(id.len() as u8);
    }
    member.extend_from_slice(id);
    // Redis keeps no string of 4 GiB, so the bytes that are cut off are zero.
    member.extend_from_slice(&(payload.len() as u64).to_le_bytes()[..width.bytes()]);
    member.extend_from_slice(payload);
    member.into()
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

/// The id that a job with this one has once it has been through a queue of `format`: the legacy
/// format has room for half an id only.
#[must_use]
pub(crate) fn id_in(format: Format, id: JobId) -> JobId {
    match format {
        Format::Current => id,
        Format::Legacy => from_java(eight(id)),
    }
}

/// The job id for an id that Java drew.
#[must_use]
pub(crate) fn from_java(id: [u8; 8]) -> JobId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&id);
    bytes[8..].copy_from_slice(&JAVA);
    JobId::from_bytes(bytes)
}

/// The id that Java drew, if [`from_java`] made this one.
#[must_use]
pub(crate) fn to_java(id: JobId) -> Option<[u8; 8]> {
    let bytes = id.to_bytes();
    let (java, mark) = bytes.split_first_chunk()?;
    (mark == JAVA).then_some(*java)
}

/// The id as it is written: so many of these bytes.
fn write_id(format: Format, id: JobId) -> ([u8; 16], usize) {
    let bytes = id.to_bytes();
    let mut short = [0; 16];
    if format == Format::Legacy || to_java(id).is_some() {
        short[..8].copy_from_slice(&eight(id));
        return (short, 8);
    }
    let millis = u48(&bytes);
    if bytes[6] >> 4 == 7 && millis < 1 << 44 {
        // Version 7, before the year 2527: the version and four zero bits of the time are left
        // out. The time stays in front, so that equal due times sort by it.
        let head = (millis << 4) | u64::from(bytes[6] & 0x0f);
        short[..6].copy_from_slice(&head.to_be_bytes()[2..]);
        short[6..15].copy_from_slice(&bytes[7..]);
        return (short, 15);
    }
    (bytes, 16)
}

/// The eight bytes that stand for an id where Redisson expects a double: Java's own, or the random
/// half of a UUID. Any eight bytes are a double to the server, and no script looks at its value.
fn eight(id: JobId) -> [u8; 8] {
    to_java(id).unwrap_or_else(|| {
        let [.., a, b, c, d, e, f, g, h] = id.to_bytes();
        [a, b, c, d, e, f, g, h]
    })
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

/// The first six bytes as a number.
fn u48(bytes: &[u8]) -> u64 {
    bytes[..6].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 7, so 15 bytes: time 0x0190b3e27a4f, then 0xc11 after the version.
    const UUID: [u8; 16] = [
        0x01, 0x90, 0xb3, 0xe2, 0x7a, 0x4f, 0x7c, 0x11, 0x8d, 0x2e, 0x3f, 0x1a, 0x5b, 0x6c, 0x7d,
        0x8e,
    ];
    const FORMATS: [Format; 2] = [Format::Current, Format::Legacy];
    const WIDTHS: [Width; 2] = [Width::Four, Width::Eight];

    fn java(id: &[u8; 8]) -> JobId {
        from_java(*id)
    }

    #[test]
    fn packs_as_the_server_does() {
        // Redis 7.0.15 on x86-64 for struct.pack('Bc0Lc0', 8, 'ABCDEFGH', 5, 'hello'), which is
        // what Redisson 3.21.1 and newer call.
        let packed = pack(Format::Current, Width::Eight, java(b"ABCDEFGH"), b"hello");
        assert_eq!(packed[..], *b"\x08ABCDEFGH\x05\0\0\0\0\0\0\0hello");
        // The same on a 32-bit or Windows server, after its `unsigned long` of four bytes.
        let packed = pack(Format::Current, Width::Four, java(b"ABCDEFGH"), b"hello");
        assert_eq!(packed[..], *b"\x08ABCDEFGH\x05\0\0\0hello");
        // struct.pack('dLc0', …), Redisson 3.21.0 and older: the double stands alone.
        let packed = pack(Format::Legacy, Width::Eight, java(b"ABCDEFGH"), b"hello");
        assert_eq!(packed[..], *b"ABCDEFGH\x05\0\0\0\0\0\0\0hello");
        let packed = pack(Format::Legacy, Width::Four, java(b"ABCDEFGH"), b"hello");
        assert_eq!(packed[..], *b"ABCDEFGH\x05\0\0\0hello");
    }

    #[test]
    fn ids_of_this_crate_lose_the_version_or_nothing() {
        let packed = pack(Format::Current, Width::Four, JobId::from_bytes(UUID), b"x");
        let short = b"\x0f\x19\x0b\x3e\x27\xa4\xfc\x11\x8d\x2e\x3f\x1a\x5b\x6c\x7d\x8e";
        assert_eq!(packed[..16], *short);
        assert_eq!(packed[16..], *b"\x01\0\0\0x");
        // Version 4: nothing can be left out.
        let mut four = UUID;
        four[6] = 0x4c;
        let packed = pack(Format::Current, Width::Four, JobId::from_bytes(four), b"");
        assert_eq!((packed[0], &packed[1..17]), (16, &four[..]));
        // In the legacy format, the random half.
        let packed = pack(Format::Legacy, Width::Four, JobId::from_bytes(UUID), b"");
        assert_eq!(packed[..8], UUID[8..]);
    }

    #[test]
    fn a_payload_of_100_bytes_fits_an_allocation_of_128() {
        let packed = pack(Format::Current, Width::Eight, JobId::from_bytes(UUID), &[7; 100]);
        // The server adds a header of three bytes and a zero.
        assert_eq!(packed.len() + 4, 128);
    }

    #[test]
    fn whatever_is_packed_is_parsed() {
        let mut ids = vec![java(b"ABCDEFGH"), java(&[0; 8]), java(&[0xff; 8])];
        // Every value of every byte, beside each version, each variant, and times too large.
        for at in 0..16 {
            for value in 0..=255 {
                let mut id = UUID;
                id[at] = value;
                ids.push(JobId::from_bytes(id));
            }
        }
        for (format, width) in FORMATS.iter().flat_map(|f| WIDTHS.map(|w| (*f, w))) {
            for id in &ids {
                for len in [0, 1, 100, 300] {
                    let payload = vec![0xa5; len];
                    let packed = pack(format, width, *id, &payload);
                    let member = parse(width, &packed).unwrap();
                    assert_eq!((member.format, member.payload), (format, &payload[..]));
                    assert_eq!(member.job_id(), Some(id_in(format, *id)));
                }
            }
        }
    }

    #[test]
    fn short_ids_sort_as_long_ones_do() {
        let pack = |id| pack(Format::Current, Width::Eight, JobId::from_bytes(id), b"");
        for at in (0..16).filter(|at| *at != 6) {
            let mut later = UUID;
            later[at] += 1;
            assert!(pack(UUID) < pack(later), "byte {at}");
        }
    }

    #[test]
    fn what_is_packed_otherwise_is_not_parsed() {
        let good = pack(Format::Current, Width::Eight, JobId::from_bytes(UUID), b"hello");
        let mut longer = good.to_vec();
        longer.push(0);
        for bytes in [&b""[..], b"hello", b"\x08ABC", &good[..good.len() - 1], &longer, &[0xff; 40]]
        {
            assert_eq!(parse(Width::Eight, bytes), None, "{bytes:x?}");
        }
        assert_eq!(parse(Width::Four, &good), None, "of a server of another width");
    }

    #[test]
    fn a_double_that_begins_with_a_seven_is_a_double() {
        let packed = b"\x07BCDEFGH\x05\0\0\0hello";
        let member = parse(Width::Four, packed).unwrap();
        assert_eq!((member.format, member.id), (Format::Legacy, &b"\x07BCDEFGH"[..]));
    }

    #[test]
    fn an_id_of_another_length_parses_but_names_no_job() {
        // Redisson's scripts accept any length, so such a member does nobody harm.
        let member = parse(Width::Four, b"\x03abc\x02\0\0\0hi").unwrap();
        assert_eq!((member.id, member.payload), (&b"abc"[..], &b"hi"[..]));
        assert_eq!(member.job_id(), None);
    }

    #[test]
    fn ids_of_java_are_told_from_uuids() {
        assert_eq!(to_java(java(b"ABCDEFGH")), Some(*b"ABCDEFGH"));
        assert_eq!(to_java(JobId::from_bytes(UUID)), None);
        assert_eq!(java(b"ABCDEFGH").to_bytes(), *b"ABCDEFGHredisson");
    }

    #[test]
    fn a_server_tells_its_width() {
        assert_eq!(Width::from_probe(b"\x01\0\0\0"), Some(Width::Four));
        assert_eq!(Width::from_probe(b"\x01\0\0\0\0\0\0\0"), Some(Width::Eight));
        assert_eq!(Width::from_probe(b"\0\0\0\0\0\0\0\x01"), None, "big-endian");
    }
}
