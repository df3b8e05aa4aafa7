//! Sources of imports.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::model::{JobId, JobRef, QueueName, Timestamp};

/// A store of delayed jobs that [`Dq::import`](crate::Dq::import) moves to another backend.
///
/// The source keeps an [`ImportJournal`] beside its entries, so that an interrupted import can be
/// resumed.
///
/// **Cancellation safety:** dropping the future of any method leaves the source consistent; the
/// call may or may not have taken effect.
#[async_trait]
pub trait ImportSource: Debug + Send + Sync {
    /// Description of the source for errors, such as `the sorted set "timeouts"`.
    fn name(&self) -> String;

    /// Number of parts, which are imported one after the other.
    fn parts(&self) -> usize {
        1
    }

    /// Refuses a target whose jobs would be entries of this source again: such an import would not
    /// end. `target` is the backend's name, such as `redisson`. Called before anything is listed.
    ///
    /// # Errors
    /// `InvalidInput` if the source may be a queue of the target.
    fn check_target(&self, _target: &str) -> Result<()> {
        Ok(())
    }

    /// Lists up to `limit` entries of one part, without the first `skip`. Removes nothing.
    ///
    /// The order of entries does not change between calls. The result is empty only at the end of
    /// the part.
    async fn list(&self, part: usize, skip: u64, limit: usize) -> Result<Vec<SourceEntry>>;

    /// Moves listed entries into the journal, as [`Stage::Taken`], each in one atomic step.
    ///
    /// Returns one result per request, in the same order: `false` if the entry is gone or its due
    /// time has changed, and it was not taken.
    async fn take(&self, part: usize, requests: &[TakeRequest]) -> Result<Vec<bool>>;

    /// The journal of the entries that were taken.
    fn journal(&self) -> &dyn ImportJournal;
}

/// The journal of an import: what was taken from the source and may not be in the target yet.
///
/// Each entry has the new job's id, the job, and a [`Stage`]. All changes are atomic for each entry
/// and as durable as the store of the source allows.
///
/// **Cancellation safety:** as for [`ImportSource`].
#[async_trait]
pub trait ImportJournal: Debug + Send + Sync {
    /// Lists up to `limit` entries, in any order.
    async fn entries(&self, limit: usize) -> Result<Vec<JournalEntry>>;

    /// Sets entries to [`Stage::Stored`].
    ///
    /// Returns one result per id, in the same order: `false` if it is no longer in the journal,
    /// because another import has finished the entry.
    async fn mark_stored(&self, ids: &[JobId]) -> Result<Vec<bool>>;

    /// Removes entries whose jobs are in the target.
    async fn remove(&self, ids: &[JobId]) -> Result<()>;
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: ImportSource + ?Sized> ImportSource for &S {
    fn name(&self) -> String {
        S::name(self)
    }

    fn parts(&self) -> usize {
        S::parts(self)
    }

    fn check_target(&self, target: &str) -> Result<()> {
        S::check_target(self, target)
    }

    async fn list(&self, part: usize, skip: u64, limit: usize) -> Result<Vec<SourceEntry>> {
        S::list(self, part, skip, limit).await
    }

    async fn take(&self, part: usize, requests: &[TakeRequest]) -> Result<Vec<bool>> {
        S::take(self, part, requests).await
    }

    fn journal(&self) -> &dyn ImportJournal {
        S::journal(self)
    }
}

/// An entry that an import source has listed.
#[derive(Debug, Clone)]
pub struct SourceEntry {
    /// Identifies the entry and its due time for [`take`](ImportSource::take).
    pub token: Bytes,
    /// The job, or why the entry is not one. The reason does not show the payload.
    pub job: Result<ImportJob, String>,
    /// Whether a later part of the source lists the entry, too. A preview then counts it only when
    /// that part is listed, and so does a report if it cannot be imported.
    pub in_later_part: bool,
}

/// A request to take an entry from an import source.
#[derive(Debug, Clone)]
pub struct TakeRequest {
    /// The id of the new job.
    pub id: JobId,
    /// The token from [`SourceEntry::token`].
    pub token: Bytes,
    /// The job to record in the journal.
    pub job: ImportJob,
}

/// A job that an import has begun to move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// The id of the job in the target.
    pub id: JobId,
    /// How far the import of the job has come.
    pub stage: Stage,
    /// The job.
    pub job: ImportJob,
}

impl JournalEntry {
    pub(super) fn reference(&self) -> JobRef {
        JobRef::new(self.job.queue.clone(), self.id)
    }
}

/// How far the import of a journal entry has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Removed from the source's entries. The target may have the job, parked: with a due time so
    /// far ahead that it does not run.
    Taken,
    /// Stored in the target, which may have run it already.
    Stored,
}

/// A job to be imported. `Debug` does not show the payload.
#[derive(Clone, PartialEq, Eq)]
pub struct ImportJob {
    /// The queue in the target.
    pub queue: QueueName,
    /// The payload that the handler decodes.
    pub payload: Bytes,
    /// The due time.
    pub due: Timestamp,
}

impl ImportJob {
    /// Serializes the job for a journal: due time in Unix milliseconds (8 bytes, big endian),
    /// length of the queue name (1 byte), queue name, payload.
    #[must_use]
    pub fn to_record(&self) -> Vec<u8> {
        let queue = self.queue.as_str().as_bytes();
        let mut record = Vec::with_capacity(9 + queue.len() + self.payload.len());
        record.extend_from_slice(&self.due.as_millis().to_be_bytes());
        // Queue names have at most 128 bytes.
        record.push(queue.len() as u8);
        record.extend_from_slice(queue);
        record.extend_from_slice(&self.payload);
        record
    }

    /// Parses the bytes of [`to_record`](Self::to_record).
    ///
    /// # Errors
    /// `Incompatible` if they are malformed.
    pub fn from_record(record: &Bytes) -> Result<Self> {
        let read = || {
            let (due, rest) = record.split_first_chunk()?;
            let (len, rest) = rest.split_first()?;
            let (queue, payload) = rest.split_at_checked(usize::from(*len))?;
            Some(Self {
                queue: QueueName::new(str::from_utf8(queue).ok()?).ok()?,
                payload: record.slice_ref(payload),
                due: Timestamp::from_millis(i64::from_be_bytes(*due)),
            })
        };
        read().ok_or_else(|| {
            Error::new(ErrorKind::Incompatible, "the journal of an import has an unreadable entry")
                .remedy("finish the import with the version that began it")
        })
    }
}

impl Debug for ImportJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportJob")
            .field("queue", &self.queue)
            .field("payload", &format_args!("<{} bytes>", self.payload.len()))
            .field("due", &self.due)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_parsed_back_and_malformed_ones_are_refused() {
        let job = ImportJob {
            queue: QueueName::new("订单").unwrap(),
            payload: Bytes::from_static(b"\0\xff"),
            due: Timestamp::from_millis(1_700_000_000_123),
        };
        let record = Bytes::from(job.to_record());
        assert_eq!(ImportJob::from_record(&record).unwrap(), job);
        for len in 0..record.len() - job.payload.len() {
            let error = ImportJob::from_record(&record.slice(..len)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible);
        }
    }
}
