//! Positions of payloads in the log.

use bytes::{Buf, BufMut, Bytes};
use dq_core::Job;

/// Position of a job's payload and headers in the log. In a replica, the field `payload` of a
/// [`Job`] holds the 16 bytes of its position instead of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LogPosition {
    /// Offset of the message.
    pub(crate) offset: u64,
    /// Index of the entry in that message.
    pub(crate) entry: u32,
    /// Index of the job in that entry.
    pub(crate) job: u32,
}

impl LogPosition {
    /// The bytes that a replica stores as the payload of the job.
    pub(crate) fn to_bytes(self) -> Bytes {
        let mut bytes = Vec::with_capacity(16);
        bytes.put_u64(self.offset);
        bytes.put_u32(self.entry);
        bytes.put_u32(self.job);
        bytes.into()
    }

    /// The position that a job of a replica holds.
    pub(crate) fn of(job: &Job) -> Self {
        let mut bytes = &job.payload[..];
        Self { offset: bytes.get_u64(), entry: bytes.get_u32(), job: bytes.get_u32() }
    }
}
