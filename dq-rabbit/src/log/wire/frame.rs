//! Frames: a stream's messages, and the entries in them, as bytes.
//!
//! ```text
//! message = magic | format | count | entry … | checksum of all before it
//! entry   = kind | flags | producer id | sequence number | time | length | body
//! ```
//!
//! Magic, format and checksum stay in later formats, so that none is taken for a foreign message.
//!
//! `postcard` encodes the entries' count and an entry's first fields; the kind says the body's
//! format. So a process can skip an unknown kind and still record the sequence number.

use dq_core::{Error, ErrorKind, Result, Timestamp};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::entry::{Command, Entry};

/// Messages without these first bytes are *foreign*.
const MAGIC: &[u8] = b"dq";
const FORMAT: u8 = 1;
const CHECKSUM_BYTES: usize = 8;

/// An entry's flag: a process that does not know the kind must stop.
const MUST_UNDERSTAND: u8 = 1;

#[derive(Debug)]
pub(crate) enum Message {
    Entries(Vec<Entry>),
    /// All replicas skip the message.
    Skipped(SkipReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SkipReason {
    Foreign,
    Damaged,
}

#[derive(Serialize, Deserialize)]
struct EntryHead {
    kind: u16,
    flags: u8,
    producer_id: u64,
    sequence: u64,
    at: Timestamp,
    length: u32,
}

impl Message {
    pub(crate) fn into_entries(self) -> Option<Vec<Entry>> {
        match self {
            Self::Entries(entries) => Some(entries),
            Self::Skipped(_) => None,
        }
    }
}

pub(crate) fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut message = append(&length(entries), [MAGIC, &[FORMAT]].concat());
    for Entry { producer_id, sequence, at, command } in entries {
        let body = command.encode_body();
        let head = EntryHead {
            kind: command.kind(),
            flags: if command.must_understand() { MUST_UNDERSTAND } else { 0 },
            producer_id: *producer_id,
            sequence: *sequence,
            at: *at,
            length: length(&body),
        };
        message = append(&head, message);
        message.extend(body);
    }
    let checksum = xxh3_64(&message);
    message.extend(checksum.to_le_bytes());
    message
}

fn append(value: &impl Serialize, message: Vec<u8>) -> Vec<u8> {
    postcard::to_extend(value, message).expect("writing to memory cannot fail")
}

fn length<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).expect("a message is far smaller than 4 GiB")
}

/// Decodes a message. An unknown kind that may be skipped becomes [`Command::Unknown`].
///
/// # Errors
/// `Incompatible` if a newer version wrote the message: an unknown format, or a kind that must be
/// understood.
pub(crate) fn decode(message: &[u8]) -> Result<Message> {
    let Some(rest) = message.strip_prefix(MAGIC) else {
        return Ok(Message::Skipped(SkipReason::Foreign));
    };
    let format = match rest.first() {
        Some(format) if *format >= FORMAT => *format,
        _ => return Ok(Message::Skipped(SkipReason::Foreign)),
    };
    let checked = message.split_last_chunk::<CHECKSUM_BYTES>();
    let Some((framed, checksum)) = checked.filter(|(framed, _)| framed.len() > MAGIC.len()) else {
        return Ok(Message::Skipped(SkipReason::Damaged));
    };
    if xxh3_64(framed) != u64::from_le_bytes(*checksum) {
        return Ok(Message::Skipped(SkipReason::Damaged));
    }
    // A newer version has written the intact message.
    if format > FORMAT {
        return Err(too_old(format!("a message of format {format}")));
    }
    decode_entries(&framed[MAGIC.len() + 1..]).map(Message::Entries)
}

fn decode_entries(mut bytes: &[u8]) -> Result<Vec<Entry>> {
    let count: u32 = take(&mut bytes)?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let entry: EntryHead = take(&mut bytes)?;
        let Some((body, rest)) = bytes.split_at_checked(entry.length as usize) else {
            return Err(too_old("an entry in another frame".to_owned()));
        };
        bytes = rest;
        let command = match Command::decode_body(entry.kind, body) {
            Some(command) => command,
            None if entry.flags & MUST_UNDERSTAND == 0 => {
                Command::Unknown { kind: entry.kind, body: body.to_vec().into() }
            }
            None => return Err(too_old(format!("an entry of kind {}", entry.kind))),
        };
        let EntryHead { producer_id, sequence, at, .. } = entry;
        entries.push(Entry { producer_id, sequence, at, command });
    }
    Ok(entries)
}

fn take<'a, T: Deserialize<'a>>(bytes: &mut &'a [u8]) -> Result<T> {
    let (value, rest) = postcard::take_from_bytes(bytes)
        .map_err(|_| too_old("an entry in another frame".to_owned()))?;
    *bytes = rest;
    Ok(value)
}

fn too_old(what: String) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!("the log holds {what}, which this version does not know"),
    )
    .remedy("run the version that wrote it, or a newer one, in all processes of the prefix")
    .operation("read the log")
}
