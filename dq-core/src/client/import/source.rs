//! Where jobs are imported from.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::model::{JobId, JobRef, QueueName, Timestamp};

/// A store of delayed jobs that [`Dq::import`](crate::Dq::import) takes from.
///
/// It keeps a journal beside what it takes from, so that an import that was interrupted goes on
/// where it was: each entry of the journal has a new job's id, the job, and a [`Stage`]. `take`,
/// `stored` and `done` each change it in one atomic step per entry, and are as durable as the store
/// is.
///
/// **Cancellation safety:** dropping the future of any method leaves the source consistent; the
/// call may or may not have taken effect.
#[async_trait]
pub trait ImportSource: Debug + Send + Sync {
    /// What it is, for errors: `the sorted set "timeouts"`.
    fn name(&self) -> String;

    /// How many lists it has that are emptied one after the other.
    fn parts(&self) -> usize {
        1
    }

    /// Up to `limit` entries of one part, without the first `skip`, in an order in which entries
    /// keep their places. Removes nothing. Empty only at the end.
    async fn list(&self, part: usize, skip: u64, limit: usize) -> Result<Vec<Listed>>;

    /// Takes entries from where they were listed into the journal, as [`Stage::Taken`]. Answers
    /// item by item in the order asked: `false` for what is not there any more, or has another due
    /// time now.
    async fn take(&self, part: usize, wishes: &[Taking]) -> Result<Vec<bool>>;

    /// Up to `limit` entries of the journal, in any order.
    async fn open(&self, limit: usize) -> Result<Vec<Open>>;

    /// Puts entries of the journal into [`Stage::Stored`]. Answers item by item in the order asked:
    /// `false` for what is not in the journal any more.
    async fn stored(&self, ids: &[JobId]) -> Result<Vec<bool>>;

    /// Removes entries from the journal.
    async fn done(&self, ids: &[JobId]) -> Result<()>;
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

    async fn list(&self, part: usize, skip: u64, limit: usize) -> Result<Vec<Listed>> {
        S::list(self, part, skip, limit).await
    }

    async fn take(&self, part: usize, wishes: &[Taking]) -> Result<Vec<bool>> {
        S::take(self, part, wishes).await
    }

    async fn open(&self, limit: usize) -> Result<Vec<Open>> {
        S::open(self, limit).await
    }

    async fn stored(&self, ids: &[JobId]) -> Result<Vec<bool>> {
        S::stored(self, ids).await
    }

    async fn done(&self, ids: &[JobId]) -> Result<()> {
        S::done(self, ids).await
    }
}

/// One entry of a source, as it was listed.
#[derive(Debug, Clone)]
pub struct Listed {
    /// By which the source finds the entry when it is to be taken, with the due time it had.
    pub token: Bytes,
    /// The job that it is; or why it is none, without showing its payload.
    pub job: Result<ImportJob, String>,
    /// Whether a later part shows the entry too; if it stays, it is counted there.
    pub again: bool,
}

/// An entry that is to be taken.
#[derive(Debug, Clone)]
pub struct Taking {
    /// The id that the job shall have.
    pub id: JobId,
    /// As it was listed.
    pub token: Bytes,
    /// What the journal is to keep.
    pub job: ImportJob,
}

/// An entry of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// The id of the job in the target.
    pub id: JobId,
    /// How far it has come.
    pub stage: Stage,
    /// The job.
    pub job: ImportJob,
}

impl Open {
    pub(super) fn reference(&self) -> JobRef {
        JobRef::new(self.job.queue.clone(), self.id)
    }
}

/// How far an entry of the journal has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The target may have it, parked.
    Taken,
    /// The target has it, or has run it.
    Stored,
}

/// A job to be imported. `Debug` does not show the payload.
#[derive(Clone, PartialEq, Eq)]
pub struct ImportJob {
    /// Where it goes.
    pub queue: QueueName,
    /// What the handler decodes.
    pub payload: Bytes,
    /// When it is due.
    pub due: Timestamp,
}

impl ImportJob {
    /// The job as bytes, for a journal.
    #[must_use]
    pub fn to_record(&self) -> Vec<u8> {
        let queue = self.queue.as_str().as_bytes();
        let mut record = Vec::with_capacity(9 + queue.len() + self.payload.len());
        record.extend_from_slice(&self.due.as_millis().to_be_bytes());
        // Names of queues have at most 128 bytes.
        record.push(queue.len() as u8);
        record.extend_from_slice(queue);
        record.extend_from_slice(&self.payload);
        record
    }

    /// The job that [`Self::to_record`] made bytes of.
    ///
    /// # Errors
    /// `Incompatible` if these are none of its bytes.
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
                .remedy("finish the import with the version that it was begun with")
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
    fn records_are_read_back_and_nothing_else_is() {
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
