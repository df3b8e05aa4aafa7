//! Payloads with their checksums.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// A job's payload, which replicas do not keep. The checksum is made when the payload is scheduled
/// and copied with it, so that a lost or exchanged payload is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Payload {
    bytes: Bytes,
    pub(crate) checksum: Checksum,
    /// Bytes that [`drop_bytes`](Self::drop_bytes) has freed.
    #[serde(skip)]
    freed: usize,
}

/// A payload's checksum (XXH3, 64 bits). A message's payload differs from the log's if the job has
/// gone on to its next step, or if its id was scheduled again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checksum([u8; 8]);

impl Checksum {
    pub(crate) fn of(payload: &[u8]) -> Self {
        Self(xxh3_64(payload).to_le_bytes())
    }
}

impl Payload {
    /// Stands for a lost payload. No process takes it for an empty one, because the checksum
    /// differs.
    pub(crate) fn lost(checksum: Checksum) -> Self {
        Self { bytes: Bytes::new(), checksum, freed: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.freed + self.bytes.len()
    }

    /// Use them only if their checksum is the job's.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub(super) fn drop_bytes(&mut self) {
        self.freed = self.len();
        self.bytes = Bytes::new();
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        let checksum = Checksum::of(&bytes);
        Self { bytes, checksum, freed: 0 }
    }
}
