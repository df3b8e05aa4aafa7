//! Payloads that a pass over the log has met on its way, kept because their jobs will need them.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use dq_core::{JobId, Timestamp};

use super::wire::Checksum;

/// Maximum size of all kept payloads, in bytes.
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// Bytes that a payload takes beside its own.
const OVERHEAD: usize = 128;

/// Payloads by job, and not by position in the log, which a snapshot changes. Those of the jobs that are due last make room for
/// others.
#[derive(Debug, Default)]
pub(super) struct KeptPayloads {
    by_due: BTreeMap<(Timestamp, JobId), Bytes>,
    due: HashMap<JobId, Timestamp>,
    bytes: usize,
}

impl KeptPayloads {
    /// Keeps the payload of a job that is due then, if there is room.
    pub(super) fn keep(&mut self, due: Timestamp, id: JobId, payload: &Bytes) {
        let is_too_late = |last: &(Timestamp, JobId)| due >= last.0;
        let is_full = self.bytes + payload.len() + OVERHEAD > MAX_BYTES;
        if is_full && self.by_due.keys().next_back().is_none_or(is_too_late) {
            return;
        }
        self.remove(id);
        self.bytes += payload.len() + OVERHEAD;
        self.due.insert(id, due);
        self.by_due.insert((due, id), payload.clone());
        while self.bytes > MAX_BYTES
            && let Some((_, last)) = self.by_due.keys().next_back().copied()
        {
            self.remove(last);
        }
    }

    /// Takes the payload of this job. `None` if it is not the one with this checksum: the job may
    /// have gone on to its next step, or a log that was created anew may have a job with this id.
    pub(super) fn take(&mut self, id: JobId, checksum: Checksum) -> Option<Bytes> {
        self.remove(id).filter(|payload| Checksum::of(payload) == checksum)
    }

    fn remove(&mut self, id: JobId) -> Option<Bytes> {
        let due = self.due.remove(&id)?;
        let removed = self.by_due.remove(&(due, id))?;
        self.bytes -= removed.len() + OVERHEAD;
        Some(removed)
    }

    /// Forgets payloads whose jobs were due before this time. Most were fetched by another process, or
    /// their jobs were cancelled; those of a job that still waits are read again.
    pub(super) fn forget_before(&mut self, time: Timestamp) {
        while let Some((due, id)) = self.by_due.keys().next().copied()
            && due < time
        {
            self.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> JobId {
        JobId::from_bytes([number; 16])
    }

    #[test]
    fn payloads_that_are_needed_first_are_kept() {
        let mut kept = KeptPayloads::default();
        let third = Bytes::from(vec![0; MAX_BYTES / 3]);
        for due in [30, 10, 20, 40] {
            kept.keep(Timestamp::from_millis(due.into()), id(due), &third);
        }
        assert!(kept.remove(id(40)).is_none(), "it is due last");
        assert!(kept.remove(id(30)).is_none(), "three do not fit, with their overhead");
        kept.forget_before(Timestamp::from_millis(20));
        assert!(kept.remove(id(10)).is_none() && kept.remove(id(20)).is_some());
        assert_eq!((kept.bytes, kept.by_due.len(), kept.due.len()), (0, 0, 0));
    }

    #[test]
    fn a_payload_that_is_not_the_one_of_the_job_is_not_used() {
        let mut kept = KeptPayloads::default();
        let (first, second) = (Bytes::from("first"), Bytes::from("second"));
        for due in [20, 10] {
            kept.keep(Timestamp::from_millis(due), id(1), &first);
        }
        assert_eq!(kept.take(id(1), Checksum::of(&first)), Some(first.clone()));
        kept.keep(Timestamp::from_millis(10), id(1), &first);
        assert_eq!(kept.take(id(1), Checksum::of(&second)), None);
        assert_eq!((kept.bytes, kept.by_due.len(), kept.due.len()), (0, 0, 0));
    }
}
