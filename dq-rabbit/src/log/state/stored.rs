//! The replica's record of payloads and headers.

use dq_core::machine::{Machine, Stored};
use dq_core::{Headers, Job};

use crate::log::wire::{Checksum, Payload};

/// A payload's place: a message, an entry in it, and a job in that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LogPosition {
    /// With the generation in the high bits, see `log/generation`.
    pub(crate) offset: u64,
    pub(crate) entry: u32,
    pub(crate) job: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PayloadRef {
    pub(crate) position: LogPosition,
    pub(crate) length: u32,
    pub(crate) checksum: Checksum,
}

impl PayloadRef {
    pub(crate) fn new(position: LogPosition, payload: &Payload) -> Self {
        let length = u32::try_from(payload.len()).expect("a message is far smaller than 4 GiB");
        Self { position, length, checksum: payload.checksum }
    }

    pub(crate) fn is_of(&self, payload: &[u8]) -> bool {
        Checksum::of(payload) == self.checksum
    }
}

/// A replica's machine stores this for each job, whose own payload and headers are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoredPayload {
    pub(crate) payload: PayloadRef,
    /// Encoded, because a map takes several times as much memory. Empty without headers.
    headers: Box<[u8]>,
}

impl StoredPayload {
    pub(crate) fn new(payload: PayloadRef, headers: &Headers) -> Self {
        let encoded = match headers.is_empty() {
            true => Vec::new(),
            false => postcard::to_allocvec(headers).expect("writing to memory cannot fail"),
        };
        Self { payload, headers: encoded.into() }
    }

    pub(crate) fn with_payload(&self, payload: PayloadRef) -> Self {
        Self { payload, headers: self.headers.clone() }
    }

    pub(crate) fn headers(&self) -> Headers {
        match &*self.headers {
            [] => Headers::new(),
            headers => postcard::from_bytes(headers).expect("they are as they were encoded"),
        }
    }
}

impl Stored for StoredPayload {
    fn bytes(&self) -> u64 {
        // A snapshot has one byte for no headers, their number.
        let headers = self.headers.len().max(1) as u64;
        Payload::stored_bytes(self.payload.length as usize) + headers
    }
}

pub(crate) type ReplicaMachine = Machine<StoredPayload>;

#[derive(Debug, Clone)]
pub(crate) struct ReplicaJob {
    pub(crate) job: Job,
    pub(crate) stored: StoredPayload,
}
