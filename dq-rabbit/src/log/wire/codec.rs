//! Encodes and decodes messages of the stream.

use dq_core::{Error, ErrorKind, Result};

use super::entry::{Entry, EntryBatch};

/// First bytes of each message. A message that does not begin with them is *foreign*: another
/// program has written it.
const MAGIC: &[u8] = b"dq";
/// Version of the format that is written, and the only one that is read.
const VERSION: u8 = 1;

/// Encodes entries as one message of the stream.
pub(crate) fn encode(replay_from: Option<u64>, entries: &[Entry]) -> Vec<u8> {
    let prefix = [MAGIC, &[VERSION]].concat();
    postcard::to_extend(&EntryBatch { replay_from, entries }, prefix)
        .expect("writing to memory cannot fail")
}

/// Decodes a message of the stream. A foreign message yields an empty batch.
///
/// # Errors
/// `Incompatible` for another version, an unknown command or a truncated message.
pub(crate) fn decode(message: &[u8]) -> Result<EntryBatch> {
    let incompatible = |what: String| {
        Error::new(ErrorKind::Incompatible, what)
            .remedy("run the same version in all processes of a prefix, and let nothing else write to its log")
            .operation("read the log")
    };
    let Some(message) = message.strip_prefix(MAGIC) else {
        tracing::warn!(bytes = message.len(), "a foreign message in the log is skipped");
        return Ok(EntryBatch { replay_from: None, entries: Vec::new() });
    };
    match message.split_first() {
        Some((&VERSION, batch)) => postcard::from_bytes(batch).map_err(|error| {
            incompatible(format!("the log holds an entry that cannot be decoded: {error}"))
        }),
        Some((version, _)) => Err(incompatible(format!(
            "the log holds entries of version {version}; this process reads version {VERSION}"
        ))),
        None => Err(incompatible("the log holds a truncated message".to_owned())),
    }
}
