//! Payloads and their checksums.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// The payload of a job. Replicas do not keep it; it is fetched when needed.
///
/// The checksum is made when the payload is scheduled and copied with it from then on, so that a
/// payload that got lost or exchanged on the way is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Payload {
    bytes: Bytes,
    checksum: Checksum,
    /// Length of bytes that [`drop_bytes`](Self::drop_bytes) has freed.
    #[serde(skip)]
    freed: usize,
}

/// The checksum of a payload (XXH3, 64 bits). It also tells a process whether a message brings the
/// payload that a job has in the log: they differ if the job has gone on to its next step, or if its
/// id was scheduled again with another payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checksum([u8; 8]);

impl Checksum {
    pub(crate) fn of(payload: &[u8]) -> Self {
        Self(xxh3_64(payload).to_le_bytes())
    }

    pub(crate) fn to_u64(self) -> u64 {
        u64::from_le_bytes(self.0)
    }

    pub(crate) fn from_u64(checksum: u64) -> Self {
        Self(checksum.to_le_bytes())
    }
}

impl Payload {
    /// The payload with this checksum that could not be found. No process takes it for an empty
    /// payload, since the checksum differs.
    pub(crate) fn lost(checksum: Checksum) -> Self {
        Self { bytes: Bytes::new(), checksum, freed: 0 }
    }

    /// The checksum of the payload that was scheduled.
    pub(crate) fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Length of the stored bytes, also after they were freed.
    pub(crate) fn len(&self) -> usize {
        self.freed + self.bytes.len()
    }

    /// The stored bytes; use them only if their checksum is that of the job.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Frees the bytes.
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
