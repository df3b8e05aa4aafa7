//! A plain sorted set: the payload as member, the due time as score.

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use dq_core::import::{ImportJob, ImportSource, Listed, Open, Taking};
use dq_core::{JobId, QueueName, Result};

use super::journal::Journal;
use super::score::Unit;

/// A sorted set with payloads as members and due times as scores, as many applications have written
/// it themselves.
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
/// Payloads arrive as they are, so they must be what the queue's handler decodes: JSON unless it
/// takes bytes. The application's own consumer may go on taking from the set meanwhile.
#[derive(Debug)]
pub struct ZsetSource {
    journal: Journal,
    key: String,
    queue: QueueName,
    unit: Unit,
}

impl ZsetSource {
    /// The sorted set `key` on the server of a `redis://` URL; its jobs go to `queue`. Scores are
    /// Unix milliseconds unless [said otherwise](Self::scores_in_seconds).
    ///
    /// # Errors
    /// `Config` if the URL cannot be used, `InvalidInput` if no queue can have the name.
    pub fn new(url: &str, key: impl Into<String>, queue: impl AsRef<str>) -> Result<Self> {
        let key = key.into();
        let journal = Journal::new(url, &key, &[])?;
        Ok(Self { journal, key, queue: QueueName::new(queue)?, unit: Unit::Millis })
    }

    /// Scores are Unix seconds, with or without a fraction.
    #[must_use]
    pub fn scores_in_seconds(mut self) -> Self {
        self.unit = Unit::Seconds;
        self
    }

    /// Scores are Unix milliseconds.
    #[must_use]
    pub fn scores_in_millis(mut self) -> Self {
        self.unit = Unit::Millis;
        self
    }

    fn listed(&self, member: Bytes, score: &Bytes) -> Listed {
        let job = self.unit.read(score).map(|due| ImportJob {
            queue: self.queue.clone(),
            payload: member.clone(),
            due,
        });
        Listed { token: token(score, &member), job, again: false }
    }
}

#[async_trait]
impl ImportSource for ZsetSource {
    fn name(&self) -> String {
        format!("the sorted set {:?}", self.key)
    }

    async fn list(&self, _: usize, skip: u64, limit: usize) -> Result<Vec<Listed>> {
        let script = include_str!("list_zset.lua");
        let entries = self.journal.pairs(script, &[&self.key], skip, limit).await?;
        Ok(entries.into_iter().map(|(member, score)| self.listed(member, &score)).collect())
    }

    async fn take(&self, _: usize, wishes: &[Taking]) -> Result<Vec<bool>> {
        take(&self.journal, &[&self.key, self.journal.key()], b"1", wishes).await
    }

    async fn open(&self, limit: usize) -> Result<Vec<Open>> {
        self.journal.open(limit).await
    }

    async fn stored(&self, ids: &[JobId]) -> Result<Vec<bool>> {
        self.journal.stored(ids).await
    }

    async fn done(&self, ids: &[JobId]) -> Result<()> {
        self.journal.done(ids).await
    }
}

/// What [`take`] finds an entry by: the score as text, a space, the member.
pub(super) fn token(score: &[u8], member: &[u8]) -> Bytes {
    let mut token = BytesMut::with_capacity(score.len() + 1 + member.len());
    token.put_slice(score);
    token.put_u8(b' ');
    token.put_slice(member);
    token.freeze()
}

/// Takes entries out of a sorted set; see the script for the keys and `end`.
pub(super) async fn take(
    journal: &Journal,
    keys: &[&str],
    end: &[u8],
    wishes: &[Taking],
) -> Result<Vec<bool>> {
    let entries: Vec<_> =
        wishes.iter().map(|wish| (wish.id.to_bytes(), wish.job.to_record())).collect();
    let mut arguments = vec![end];
    for (wish, (id, record)) in wishes.iter().zip(&entries) {
        let space = wish.token.iter().position(|byte| *byte == b' ').unwrap_or_default();
        let (score, member) = wish.token.split_at(space);
        arguments.extend([&id[..], score, &member[1..], &record[..]]);
    }
    journal.ask(include_str!("take_zset.lua"), keys, &arguments).await
}
