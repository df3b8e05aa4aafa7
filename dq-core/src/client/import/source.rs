//! Import sources and their journal.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::model::{JobId, JobRef, QueueName, Timestamp};

/// A store that [`Dq::import`](crate::Dq::import) moves to another backend.
///
/// It keeps an [`ImportJournal`] beside its entries, so that you can resume an interrupted import.
///
/// **Cancellation safety:** dropping a method's future leaves the source consistent; the call may
/// or may not have taken effect.
#[async_trait]
pub trait ImportSource: Debug + Send + Sync {
    /// Describes the source in errors, such as `the sorted set "timeouts"`.
    fn name(&self) -> String;

    /// Returns the number of parts, which are imported one by one.
    fn parts(&self) -> usize {
        1
    }

    /// Refuses a target whose jobs become entries of this source: the import would never end.
    ///
    /// `target` is the backend's name, such as `redisson`. Called before anything is listed.
    ///
    /// # Errors
    /// `InvalidInput` if the source may be a queue of the target.
    fn check_target(&self, _target: &str) -> Result<()> {
        Ok(())
    }

    /// Lists up to `limit` entries of a part, after the first `skip`. Removes nothing.
    ///
    /// The order is the same in each call. The result is empty only at the part's end.
    async fn list(&self, part: usize, skip: u64, limit: usize) -> Result<Vec<SourceEntry>>;

    /// Moves listed entries into the journal as [`Stage::Taken`], each in one atomic step.
    ///
    /// Returns one result per request, in order: `false` if the entry is gone or has another due
    /// time, and is not taken.
    async fn take(&self, part: usize, requests: &[TakeRequest]) -> Result<Vec<bool>>;

    /// Returns the journal of taken entries.
    fn journal(&self) -> &dyn ImportJournal;
}

/// An import's journal: jobs taken from the source that may not be in the target yet.
///
/// Changes are atomic per entry, and as durable as the source's store. Cancellation safety is as
/// for [`ImportSource`].
#[async_trait]
pub trait ImportJournal: Debug + Send + Sync {
    /// Lists up to `limit` entries, in any order.
    async fn entries(&self, limit: usize) -> Result<Vec<JournalEntry>>;

    /// Sets entries to [`Stage::Stored`].
    ///
    /// Returns one result per id, in order: `false` if another import has finished the entry and
    /// removed it.
    async fn mark_stored(&self, ids: &[JobId]) -> Result<Vec<bool>>;

    /// Removes entries that are in the target.
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

/// An entry listed by an import source.
#[derive(Debug, Clone)]
pub struct SourceEntry {
    /// Identifies the entry and its due time for [`take`](ImportSource::take).
    pub token: Bytes,
    /// The job, or why the entry is not one, without the payload.
    pub job: Result<ImportJob, String>,
    /// Whether a later part also lists the entry. Previews and rejections count it only there.
    pub in_later_part: bool,
}

/// An argument of [`take`](ImportSource::take).
#[derive(Debug, Clone)]
pub struct TakeRequest {
    /// The id of the new job.
    pub id: JobId,
    /// The token from [`SourceEntry::token`].
    pub token: Bytes,
    /// The job to record in the journal.
    pub job: ImportJob,
}

/// A job that an import is moving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// The job id in the target.
    pub id: JobId,
    /// The import stage.
    pub stage: Stage,
    /// The job.
    pub job: ImportJob,
}

impl JournalEntry {
    pub(super) fn reference(&self) -> JobRef {
        JobRef::new(self.job.queue.clone(), self.id)
    }
}

/// A journal entry's import stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Taken from the source. The target may have the job, parked far ahead so that it does not
    /// run.
    Taken,
    /// Stored in the target, which may have run it already.
    Stored,
}

/// A job to import. `Debug` does not show the payload.
#[derive(Clone, PartialEq, Eq)]
pub struct ImportJob {
    /// The queue in the target.
    pub queue: QueueName,
    /// The payload for the handler.
    pub payload: Bytes,
    /// The due time.
    pub due: Timestamp,
}

impl ImportJob {
    /// Serializes the job for a journal: due time in Unix milliseconds (8 bytes, big endian), queue
    /// name length (1 byte), queue name, payload.
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

    /// Parses the bytes from [`to_record`](Self::to_record).
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
