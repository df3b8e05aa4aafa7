//! A delayed queue of Redisson: what waits, and what is due and not taken yet.

use async_trait::async_trait;
use bytes::Bytes;
use dq_core::import::{ImportJob, ImportSource, Listed, Open, Taking};
use dq_core::{Clock, Error, ErrorKind, JobId, QueueName, Result, SystemClock, Timestamp};
use tokio::sync::OnceCell;

use super::journal::{Journal, beside};
use super::score::Unit;
use super::zset::{take, token};
use crate::redisson::Codec;
use crate::redisson::member::{Width, parse};
use crate::reply;

/// An `RDelayedQueue` of Redisson with its destination queue.
///
/// ```
/// use dq_redis::{Codec, RedissonSource};
///
/// # async fn example(dq: dq_core::Dq) -> dq_core::Result<()> {
/// let source = RedissonSource::new("redis://localhost:6379/0", "orders")?.codec(Codec::Json);
/// dq.import(source).await?;
/// # Ok(())
/// # }
/// ```
///
/// Jobs that wait arrive with their due times; those that Redisson has moved to the destination
/// queue already are due at once. Both of Redisson's formats are read. Java clients may go on
/// offering and taking meanwhile: each job goes to one side only.
///
/// Three lists are emptied one after the other: the order list with what waits, since an element is
/// found at once at its front; whatever else waits; the destination queue. Entries of the order
/// list that do not wait any more are no jobs, and are left without being counted.
#[derive(Debug)]
pub struct RedissonSource {
    journal: Journal,
    name: String,
    due: String,
    order: String,
    queue: QueueName,
    codec: Codec,
    width: OnceCell<Width>,
}

const ORDER: usize = 0;
const DUE: usize = 1;

impl RedissonSource {
    /// The queue `name` as it is called in Redis, with the prefix of a `NameMapper` if Java has one,
    /// on the server of a `redis://` URL. Its jobs go to the queue of the same name unless
    /// [said otherwise](Self::queue), with their payloads as they are unless a
    /// [codec](Self::codec) is named.
    ///
    /// Not into itself: where the target is a `redisson` backend on the same server, its queue must
    /// have another name. What that backend keeps beside Java's keys — keys, headers, retries, dead
    /// jobs — is not imported; use `[[drain]]` for it.
    ///
    /// # Errors
    /// `Config` if the URL cannot be used, `InvalidInput` if no queue can have the name.
    pub fn new(url: &str, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let due = beside("redisson_delay_queue_timeout", &name);
        let order = beside("redisson_delay_queue", &name);
        Ok(Self {
            journal: Journal::new(url, &name, &[&due, &order])?,
            queue: QueueName::new(&name)?,
            codec: Codec::default(),
            width: OnceCell::new(),
            name,
            due,
            order,
        })
    }

    /// Where the jobs go.
    ///
    /// # Errors
    /// `InvalidInput` if no queue can have the name.
    pub fn queue(mut self, queue: impl AsRef<str>) -> Result<Self> {
        self.queue = QueueName::new(queue)?;
        Ok(self)
    }

    /// How the Java clients encode payloads.
    #[must_use]
    pub fn codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// How the server packs lengths; asked once.
    async fn width(&self) -> Result<Width> {
        let ask = async {
            let one = self.journal.eval(Width::PROBE, &[], &[]).await?;
            reply::bytes(one).and_then(|one| Width::from_probe(&one)).ok_or_else(|| {
                Error::new(ErrorKind::Incompatible, "the server packs numbers big-endian")
                    .remedy("import from a replica on a little-endian machine")
            })
        };
        self.width.get_or_try_init(|| ask).await.copied()
    }

    fn job(&self, payload: &Bytes, due: Timestamp) -> Result<ImportJob, String> {
        let payload = self.codec.decode(payload).map_err(|error| match error.remedy_text() {
            Some(remedy) => format!("{} ({remedy})", error.message()),
            None => error.message().to_owned(),
        })?;
        Ok(ImportJob { queue: self.queue.clone(), payload, due })
    }

    fn waiting(&self, width: Width, member: &Bytes, score: &Bytes) -> Result<ImportJob, String> {
        if score.is_empty() {
            return Err("it does not wait any more".to_owned());
        }
        let due = Unit::Millis.read(score)?;
        match parse(width, member) {
            Some(parsed) => self.job(&member.slice_ref(parsed.payload), due),
            None => Err("it is not packed as Redisson packs its entries".to_owned()),
        }
    }
}

#[async_trait]
impl ImportSource for RedissonSource {
    fn name(&self) -> String {
        format!("the Redisson queue {:?}", self.name)
    }

    fn parts(&self) -> usize {
        3
    }

    async fn list(&self, part: usize, skip: u64, limit: usize) -> Result<Vec<Listed>> {
        let order = include_str!("list_order.lua");
        let entries = match part {
            ORDER => self.journal.pairs(order, &[&self.order, &self.due], skip, limit).await?,
            DUE => {
                let script = include_str!("list_zset.lua");
                self.journal.pairs(script, &[&self.due], skip, limit).await?
            }
            _ => {
                let now = SystemClock.now();
                let payloads = self.journal.range(&self.name, skip, limit).await?;
                let listed = |payload: Bytes| {
                    let job = self.job(&payload, now);
                    Listed { token: payload, job, again: false }
                };
                return Ok(payloads.into_iter().map(listed).collect());
            }
        };
        let width = self.width().await?;
        let listed = |(member, score): (Bytes, Bytes)| Listed {
            token: token(&score, &member),
            job: self.waiting(width, &member, &score),
            again: part == ORDER,
        };
        Ok(entries.into_iter().map(listed).collect())
    }

    async fn take(&self, part: usize, wishes: &[Taking]) -> Result<Vec<bool>> {
        let waiting = [self.due.as_str(), self.journal.key(), &self.order];
        match part {
            ORDER => take(&self.journal, &waiting, b"1", wishes).await,
            // What the order list has now was added since, at its end.
            DUE => take(&self.journal, &waiting, b"-1", wishes).await,
            _ => {
                let entries: Vec<_> =
                    wishes.iter().map(|wish| (wish.id.to_bytes(), wish.job.to_record())).collect();
                let arguments: Vec<&[u8]> = wishes
                    .iter()
                    .zip(&entries)
                    .flat_map(|(wish, (id, record))| [&id[..], &wish.token[..], &record[..]])
                    .collect();
                let keys = [self.name.as_str(), self.journal.key()];
                self.journal.ask(include_str!("take_list.lua"), &keys, &arguments).await
            }
        }
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
