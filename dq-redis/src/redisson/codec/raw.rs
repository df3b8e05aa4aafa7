//! Bytes as they are.

use bytes::Bytes;

/// What the application encoded is what Java reads.
pub(super) fn encode(payload: &Bytes) -> Bytes {
    payload.clone()
}

/// What Java wrote is what the handler decodes.
pub(super) fn decode(bytes: &Bytes) -> Bytes {
    bytes.clone()
}
