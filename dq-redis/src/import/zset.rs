//! Imports a sorted set.

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use dq_core::import::{ImportJob, ImportJournal, ImportSource, SourceEntry, TakeRequest};
use dq_core::{QueueName, Result};

use super::journal::Journal;
use super::score::Unit;

/// An import source: a sorted set with payloads as members and due times as scores.
///
/// ```
/// use dq_redis::ZsetSource;
///
/// # async fn example(dq: dq_core::Dq) -> dq_core::Result<()> {
/// let source = ZsetSource::new("redis://localhost:6379/0", "order:timeouts", "ORDER_TIMEOUT")?
///     .scores_in_seconds();
/// dq.import(source).await?;
/// # Ok(())
/// # }
/// ```
///
/// Payloads stay unchanged, so your handler must be able to decode them: they are JSON unless it
/// reads bytes. Your own consumer may go on taking from the set.
#[derive(Debug)]
pub struct ZsetSource {
    journal: Journal,
    key: String,
    queue: QueueName,
    unit: Unit,
}

impl ZsetSource {
    /// Creates a source for the sorted set `key` on the server of a `redis://` URL. Its jobs go to
    /// `queue`. Scores are Unix milliseconds, unless you set
    /// [`scores_in_seconds`](Self::scores_in_seconds).
    ///
    /// # Errors
    /// `Config` if the URL is unusable, `InvalidInput` if the name is not valid for a queue.
    pub fn new(url: &str, key: impl Into<String>, queue: impl AsRef<str>) -> Result<Self> {
        let key = key.into();
        let journal = Journal::new(url, &key, &[])?;
        Ok(Self { journal, key, queue: QueueName::new(queue)?, unit: Unit::Millis })
    }

    /// Reads scores as Unix seconds, with or without a fraction.
    #[must_use]
    pub fn scores_in_seconds(mut self) -> Self {
        self.unit = Unit::Seconds;
        self
    }

    fn listed(&self, member: Bytes, score: &Bytes) -> SourceEntry {
        let job = self.unit.parse(score).map(|due| ImportJob {
            queue: self.queue.clone(),
            payload: member.clone(),
            due,
        });
        SourceEntry { token: token(score, &member), job, in_later_part: false }
    }
}

#[async_trait]
impl ImportSource for ZsetSource {
    fn name(&self) -> String {
        format!("the sorted set {:?}", self.key)
    }

    async fn list(&self, _part: usize, skip: u64, limit: usize) -> Result<Vec<SourceEntry>> {
        let entries = self.journal.scored(&self.key, skip, limit).await?;
        Ok(entries.into_iter().map(|(member, score)| self.listed(member, &score)).collect())
    }

    async fn take(&self, _part: usize, requests: &[TakeRequest]) -> Result<Vec<bool>> {
        let keys = [&self.key, self.journal.key()];
        self.journal.take(include_str!("take_zset.lua"), &keys, "1", requests).await
    }

    fn journal(&self) -> &dyn ImportJournal {
        &self.journal
    }
}

/// Identifies an entry when it is taken: its listed score as text, a space, the member.
pub(super) fn token(score: &[u8], member: &[u8]) -> Bytes {
    let mut token = BytesMut::with_capacity(score.len() + 1 + member.len());
    token.put_slice(score);
    token.put_u8(b' ');
    token.put_slice(member);
    token.freeze()
}
