//! Positions of payloads in the log.

use bytes::{Buf, BufMut, Bytes};
use dq_core::Job;

/// Position of a job's payload in the log. A job of a replica holds it in place of the payload.
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
    pub(crate) fn to_bytes(self) -> Bytes {
        let mut bytes = Vec::with_capacity(16);
        bytes.put_u64(self.offset);
        bytes.put_u32(self.entry);
        bytes.put_u32(self.job);
        bytes.into()
    }

    /// Position of the payload of a replica's job.
    pub(crate) fn of(job: &Job) -> Self {
        let mut bytes = &job.payload[..];
        Self { offset: bytes.get_u64(), entry: bytes.get_u32(), job: bytes.get_u32() }
    }
}
