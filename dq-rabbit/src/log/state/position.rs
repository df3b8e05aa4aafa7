//! What a replica keeps of payloads and headers.

use bytes::{Buf, BufMut, Bytes};
use dq_core::{Headers, Job};

use crate::log::wire::{Checksum, Payload};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LogPosition {
    /// With the generation in the high bits, see `log/generation`.
    pub(crate) offset: u64,
    pub(crate) entry: u32,
    pub(crate) job: u32,
}

impl LogPosition {
    pub(crate) fn of(job: &Job) -> Self {
        PayloadRef::of(job).position
    }
}

const REF_BYTES: usize = 28;

/// What a replica knows of a payload. A replica's [`Job`] has this in its field `payload`, followed
/// by the encoded headers. The field `headers` is empty, because a map takes several times as much
/// memory.
///
/// Functions that take a job *of a replica* panic for others, and for ended jobs, which have no
/// payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PayloadRef {
    pub(crate) position: LogPosition,
    pub(crate) length: u32,
    pub(crate) checksum: Checksum,
}

impl PayloadRef {
    pub(crate) fn new(position: LogPosition, payload: &Payload) -> Self {
        let length = u32::try_from(payload.len()).expect("a message is far smaller than 4 GiB");
        Self { position, length, checksum: payload.checksum() }
    }

    /// The payload field of a job with these headers.
    pub(crate) fn to_bytes(self, headers: &Headers) -> Bytes {
        if headers.is_empty() {
            return self.to_bytes_with(&[]);
        }
        let headers = postcard::to_allocvec(headers).expect("writing to memory cannot fail");
        self.to_bytes_with(&headers)
    }

    /// Keeps the headers of this job.
    pub(crate) fn to_bytes_of(self, job: &Job) -> Bytes {
        self.to_bytes_with(&job.payload[REF_BYTES..])
    }

    fn to_bytes_with(self, headers: &[u8]) -> Bytes {
        let Self { position: LogPosition { offset, entry, job }, length, checksum } = self;
        let mut bytes = Vec::with_capacity(REF_BYTES + headers.len());
        bytes.put_u64(offset);
        bytes.put_u32(entry);
        bytes.put_u32(job);
        bytes.put_u32(length);
        bytes.put_u64(checksum.to_u64());
        bytes.extend(headers);
        bytes.into()
    }

    pub(crate) fn of(job: &Job) -> Self {
        let mut bytes = &job.payload[..];
        let position =
            LogPosition { offset: bytes.get_u64(), entry: bytes.get_u32(), job: bytes.get_u32() };
        let (length, checksum) = (bytes.get_u32(), Checksum::from_u64(bytes.get_u64()));
        Self { position, length, checksum }
    }
}

/// Size of a job's headers in a snapshot.
pub(crate) fn headers_bytes(job: &Job) -> u64 {
    // Without headers, a replica has no bytes and a snapshot one, their number.
    (job.payload.len() - REF_BYTES).max(1) as u64
}

pub(crate) fn headers_of(job: &Job) -> Headers {
    match &job.payload[REF_BYTES..] {
        [] => Headers::new(),
        headers => postcard::from_bytes(headers).expect("they are as they were encoded"),
    }
}
