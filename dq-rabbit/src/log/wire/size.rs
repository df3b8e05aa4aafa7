//! Sizes of commands, and the payloads that they contain.

use bytes::Bytes;
use dq_core::{JobId, JobKey};
use serde::Serialize;

use super::entry::{
    Announcement, Command, EndedJob, JobNotes, NewJob, QueueOperation, Settlement, SnapshotEntry,
    SnapshotJob, SnapshotPart, Verdict,
};
use super::payload::{Checksum, Payload};

impl Command {
    /// Approximate size in the log, in bytes.
    pub(crate) fn approx_size(&self) -> usize {
        let content = match self {
            Self::Schedule(jobs) => jobs.iter().map(NewJob::approx_size).sum(),
            Self::Snapshot(SnapshotEntry::Part { part, .. }) => part.approx_size(),
            Self::Park(parked) => parked.iter().map(|(job, _)| job.approx_size()).sum(),
            Self::Claim(claim) => 16 * claim.prefetched.len(),
            Self::Settle(settlements) => settlements.iter().map(Settlement::approx_size).sum(),
            Self::Cancel(jobs) => 64 * jobs.len(),
            Self::Reschedule(moves) => 72 * moves.len(),
            Self::Renew(renewals) => 72 * renewals.len(),
            Self::EndLeases(leases) => 64 * leases.len(),
            Self::Announce(Announcement(name, info, _)) => name.len() + info.len(),
            Self::Operate(_, QueueOperation::Remove(ids) | QueueOperation::Replay(ids, _)) => {
                16 * ids.len()
            }
            _ => 0,
        };
        64 + content
    }

    /// The payload at this index, with the id of its job. `None` if the command has none there.
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

    /// Frees the payloads of the jobs.
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
    /// Size of an entry of a snapshot in the log, in bytes; 0 for other commands.
    pub(crate) fn snapshot_bytes(&self) -> u64 {
        match self {
            Self::Snapshot(entry) => encoded_size(entry),
            _ => 0,
        }
    }

    /// The jobs that the command stores if the log has room for them.
    pub(crate) fn new_jobs(&self) -> Vec<&NewJob> {
        match self {
            Self::Schedule(jobs) => jobs.iter().collect(),
            Self::Park(jobs) => jobs.iter().map(|(job, _)| job).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether the command adds jobs to the state. A snapshot adds none: it has those that are there,
    /// and must be written when the log is full.
    pub(crate) fn adds_jobs(&self) -> bool {
        !self.new_jobs().is_empty()
    }
}

/// Size of a value in the log, in bytes.
pub(crate) fn encoded_size(value: &impl Serialize) -> u64 {
    postcard::experimental::serialized_size(value).expect("measuring cannot fail") as u64
}

impl Payload {
    /// What a payload of this length takes in the log.
    pub(crate) fn stored_bytes(length: usize) -> u64 {
        encoded_size(&length) + (length + size_of::<Checksum>()) as u64
    }
}

impl NewJob {
    /// What the job takes in a snapshot, without what any job has there: state, times and counters,
    /// which are counted as a fixed number of bytes.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let Self { id, queue, key, max_attempts, headers, .. } = self;
        let key = key.as_ref().map(JobKey::as_str);
        encoded_size(&(id, queue.as_str(), key, max_attempts, headers))
            + Payload::stored_bytes(self.payload.len())
    }

    /// The key.
    pub(crate) fn key(&self) -> Option<&JobKey> {
        self.key.as_ref()
    }

    /// Approximate size in the log, in bytes.
    pub(crate) fn approx_size(&self) -> usize {
        96 + self.payload.len() + self.headers.size_bytes()
    }
}

impl Settlement {
    /// Approximate size in the log, in bytes.
    pub(crate) fn approx_size(&self) -> usize {
        let content = match &self.1 {
            Verdict::Skip(text) | Verdict::Retry(_, text) => text.len(),
            Verdict::Dead { message, .. } => message.len(),
            Verdict::Again(_, payload) => payload.len(),
            _ => 0,
        };
        64 + content
    }

    /// The id of the job.
    pub(crate) fn job(&self) -> JobId {
        self.0.1
    }

    /// The payload that the job gets; `None` if it keeps its own.
    pub(crate) fn payload(&self) -> Option<&Payload> {
        match &self.1 {
            Verdict::Again(_, payload) => Some(payload),
            _ => None,
        }
    }
}

impl SnapshotPart {
    /// Approximate size in the log, in bytes.
    fn approx_size(&self) -> usize {
        match self {
            Self::Header(header) => 24 * header.producers.len() + 48 * header.queues.len(),
            Self::Jobs(jobs) => jobs.iter().map(SnapshotJob::approx_size).sum(),
            Self::Ended(jobs) => jobs.iter().map(EndedJob::approx_size).sum(),
            Self::Pins(pins) => 32 * pins.len(),
            Self::Runners(runners) => {
                runners.iter().map(|(name, info, ..)| 32 + name.len() + info.len()).sum()
            }
            Self::Leases(leases) => 64 * leases.len(),
        }
    }
}

impl SnapshotJob {
    /// Approximate size in the log, in bytes.
    pub(crate) fn approx_size(&self) -> usize {
        let notes = self.notes.as_ref().map_or(0, JobNotes::approx_size);
        96 + self.payload.len() + self.headers.size_bytes() + notes
    }
}

impl JobNotes {
    /// Approximate size in the log, in bytes.
    fn approx_size(&self) -> usize {
        16 + len(self.last_error.as_ref()) + len(self.worker.as_ref())
    }
}

impl EndedJob {
    /// Approximate size in the log, in bytes.
    pub(crate) fn approx_size(&self) -> usize {
        let texts = [&self.worker, &self.last_error, &self.reason];
        96 + texts.into_iter().map(|text| len(text.as_ref())).sum::<usize>()
    }
}

fn len(text: Option<&String>) -> usize {
    text.map_or(0, String::len)
}
