//! The sizes of commands, and the payloads in them.

use bytes::Bytes;
use dq_core::{JobId, JobKey};
use serde::Serialize;

use super::entry::{Command, NewJob, Settlement, SnapshotEntry, SnapshotPart, Verdict};
use super::payload::{Checksum, Payload};

/// An entry before its body, approximately.
const HEAD_BYTES: usize = 32;

impl Command {
    pub(crate) fn size(&self) -> usize {
        HEAD_BYTES + self.body_size()
    }

    pub(crate) fn payload(&self, index: u32) -> Option<(JobId, &Bytes)> {
        let index = index as usize;
        let job = match self {
            Self::Schedule(jobs) => jobs.get(index),
            Self::Park(parked) => parked.get(index).map(|(job, _)| job),
            Self::Snapshot(SnapshotEntry::Part { part: SnapshotPart::Jobs(jobs), .. }) => {
                let job = jobs.get(index)?;
                return Some((job.job.id, job.payload.bytes()));
            }
            Self::Settle(settlements) => {
                let settlement = settlements.get(index)?;
                return Some((settlement.job(), settlement.payload()?.bytes()));
            }
            _ => None,
        };
        job.map(|job| (job.id, job.payload.bytes()))
    }

    pub(crate) fn drop_payloads(&mut self) {
        match self {
            Self::Schedule(jobs) => jobs.iter_mut().for_each(|job| job.payload.drop_bytes()),
            Self::Park(parked) => parked.iter_mut().for_each(|(job, _)| job.payload.drop_bytes()),
            Self::Snapshot(SnapshotEntry::Part { part: SnapshotPart::Jobs(jobs), .. }) => {
                jobs.iter_mut().for_each(|job| job.payload.drop_bytes());
            }
            Self::Settle(settlements) => {
                for Settlement(_, verdict) in settlements {
                    if let Verdict::Again(_, payload) = verdict {
                        payload.drop_bytes();
                    }
                }
            }
            _ => {}
        }
    }
}

impl Command {
    /// The bytes of a snapshot; 0 for other commands.
    pub(crate) fn snapshot_bytes(&self) -> u64 {
        match self {
            Self::Snapshot(_) => self.body_size() as u64,
            _ => 0,
        }
    }

    /// Lists the jobs that the log stores only if it has room.
    pub(crate) fn new_jobs(&self) -> Vec<&NewJob> {
        match self {
            Self::Schedule(jobs) => jobs.iter().collect(),
            Self::Park(jobs) => jobs.iter().map(|(job, _)| job).collect(),
            _ => Vec::new(),
        }
    }

    /// A snapshot adds none, and must be written when the log is full.
    pub(crate) fn adds_jobs(&self) -> bool {
        !self.new_jobs().is_empty()
    }
}

pub(crate) fn encoded_size(value: &impl Serialize) -> u64 {
    postcard::experimental::serialized_size(value).expect("measuring cannot fail") as u64
}

impl Payload {
    pub(crate) fn stored_bytes(length: usize) -> u64 {
        encoded_size(&length) + (length + size_of::<Checksum>()) as u64
    }
}

impl NewJob {
    /// In a snapshot, without state, times and counters, which count as a fixed number of bytes.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let Self { id, queue, key, max_attempts, headers, .. } = self;
        let key = key.as_ref().map(JobKey::as_str);
        encoded_size(&(id, queue.as_str(), key, max_attempts, headers))
            + Payload::stored_bytes(self.payload.len())
    }

    pub(crate) fn key(&self) -> Option<&JobKey> {
        self.key.as_ref()
    }
}

impl Settlement {
    pub(crate) fn job(&self) -> JobId {
        self.0.1
    }

    /// The next step's payload; `None` if the job keeps its own.
    pub(crate) fn payload(&self) -> Option<&Payload> {
        match &self.1 {
            Verdict::Again(_, payload) => Some(payload),
            _ => None,
        }
    }
}
