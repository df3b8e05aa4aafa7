//! Imports a Redisson delayed queue: its waiting entries and its due payloads.

use std::sync::OnceLock;

use async_trait::async_trait;
use bytes::Bytes;
use dq_core::import::{ImportJob, ImportJournal, ImportSource, SourceEntry, TakeRequest};
use dq_core::{Clock, Error, QueueName, Result, SystemClock, Timestamp};
use tokio::sync::OnceCell;

use super::journal::{Journal, pairs};
use super::score::Unit;
use super::zset::token;
use crate::error::unexpected;
use crate::redisson::codec::Codec;
use crate::redisson::layout::tagged;
use crate::redisson::member::{Format, LENGTH_BYTES_PROBE, parse_as};
use crate::reply::{self, Reply};

/// An import source: a Redisson `RDelayedQueue` with its destination queue.
///
/// ```
/// use dq_redis::{Codec, RedissonSource};
///
/// # async fn example(dq: dq_core::Dq) -> dq_core::Result<()> {
/// let source = RedissonSource::new("redis://localhost:6379/0", "orders", Codec::Json)?;
/// dq.import(source).await?;
/// # Ok(())
/// # }
/// ```
///
/// Waiting jobs keep their due times. Jobs already in the destination queue are due at once. Both
/// Redisson formats are read. Java clients may go on offering and taking: each job goes to one side
/// only.
///
/// The import takes the waiting entries in the order list (`redisson_delay_queue:{name}`) from its
/// front, where removal is quick, then all others (`redisson_delay_queue_timeout:{name}`), then the
/// destination queue. Order list entries that no longer wait are no jobs: they stay there.
#[derive(Debug)]
pub struct RedissonSource {
    journal: Journal,
    name: String,
    due: String,
    order: String,
    queue: QueueName,
    codec: Codec,
    /// The size of lengths in entries, once it was looked up.
    length_bytes: OnceCell<usize>,
    /// The format, from the first entry that shows it. All entries have the same.
    format: OnceLock<Format>,
}

const ORDER: usize = 0;
/// The second part: the other waiting entries. The third is the destination queue.
const DUE: usize = 1;

impl RedissonSource {
    /// Creates a source for the Redisson queue `name` on the server of a `redis://` URL. `name` is
    /// the key in Redis, including a `NameMapper`'s prefix. `codec` is the Java clients'; with
    /// [`Codec::Raw`], payloads stay unchanged, so that handlers may not be able to read them.
    ///
    /// Jobs go to the queue of the same name, unless you set [`queue`](Self::queue).
    ///
    /// You cannot import a queue into itself. An import into a `redisson` backend is refused if
    /// `name` ends with the target's queue name, because the backend may be on the same server and
    /// may add a prefix. The import skips what such a backend keeps beside Java's keys (job keys,
    /// headers, retries, dead jobs); use `[[drain]]` for that.
    ///
    /// # Errors
    /// `Config` if the URL is unusable, `InvalidInput` if the name is not valid for a queue.
    pub fn new(url: &str, name: impl Into<String>, codec: Codec) -> Result<Self> {
        let name = name.into();
        let due = tagged("redisson_delay_queue_timeout", &name);
        let order = tagged("redisson_delay_queue", &name);
        Ok(Self {
            journal: Journal::new(url, &name, &[&due, &order])?,
            queue: QueueName::new(&name)?,
            codec,
            length_bytes: OnceCell::new(),
            format: OnceLock::new(),
            name,
            due,
            order,
        })
    }

    /// Sets the queue for the imported jobs.
    ///
    /// # Errors
    /// `InvalidInput` if the name is not valid for a queue.
    pub fn queue(mut self, queue: impl AsRef<str>) -> Result<Self> {
        self.queue = QueueName::new(queue)?;
        Ok(self)
    }

    async fn length_bytes(&self) -> Result<usize> {
        let probe = async {
            let answer = self.journal.eval(LENGTH_BYTES_PROBE, &[], &[]).await?;
            usize::try_from(reply::count(&answer)?).map_err(|_| unexpected())
        };
        self.length_bytes.get_or_try_init(|| probe).await.copied()
    }

    /// The error says why the payload cannot be imported.
    fn job(&self, payload: &Bytes, due: Timestamp) -> Result<ImportJob, String> {
        let payload = self.codec.decode(payload).map_err(|error| match error.remedy_text() {
            Some(remedy) => format!("{} ({remedy})", error.message()),
            None => error.message().to_owned(),
        })?;
        Ok(ImportJob { queue: self.queue.clone(), payload, due })
    }

    fn waiting(
        &self,
        length_bytes: usize,
        member: &Bytes,
        score: &Bytes,
    ) -> Result<ImportJob, String> {
        if score.is_empty() {
            return Err("the entry does not wait any more".to_owned());
        }
        let due = Unit::Millis.parse(score)?;
        let [current, legacy] =
            [Format::Current, Format::Legacy].map(|format| parse_as(format, length_bytes, member));
        // A member that begins with a 7 counts as legacy, whatever it is.
        let shown = match (current, legacy) {
            (Some(_), None) => Some(Format::Current),
            (None, Some(_)) if member[0] != 7 => Some(Format::Legacy),
            _ => None,
        };
        if let Some(format) = shown {
            let _ = self.format.set(format);
        }
        let payload = match (current, legacy, self.format.get()) {
            (Some(payload), Some(_), Some(Format::Current))
            | (Some(_), Some(payload), Some(Format::Legacy))
            | (Some(payload), None, _)
            | (None, Some(payload), _) => payload,
            (Some(_), Some(_), None) => {
                return Err("the entry can be read in both formats of Redisson, with different \
                            payloads; import again after others, which show the format"
                    .to_owned());
            }
            (None, None, _) => {
                return Err("the entry is not packed in a format of Redisson".to_owned());
            }
        };
        self.job(&member.slice_ref(payload), due)
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

    fn check_target(&self, target: &str) -> Result<()> {
        // Two addresses may be one server, and the backend's name prefix is not known here.
        if target != "redisson" || !self.name.ends_with(self.queue.as_str()) {
            return Ok(());
        }
        let message = format!(
            "the queue {} of a redisson store may be the Redisson queue {:?} itself",
            self.queue, self.name
        );
        Err(Error::invalid(message).remedy(
            "import into a queue of another name: `--queue`, or `RedissonSource::queue`; or move \
             the jobs to another server with `[[drain]]`",
        ))
    }

    async fn list(&self, part: usize, skip: u64, limit: usize) -> Result<Vec<SourceEntry>> {
        let entries = match part {
            ORDER => {
                let (script, keys) = (include_str!("list_order.lua"), [&*self.order, &self.due]);
                let [skip, limit] = [skip.to_string(), limit.to_string()];
                let arguments = [skip.as_bytes(), limit.as_bytes()];
                pairs(Reply::new(self.journal.eval(script, &keys, &arguments).await?)?)?
            }
            DUE => self.journal.scored(&self.due, skip, limit).await?,
            _ => {
                let mut command = redis::cmd("LRANGE");
                command.arg(&self.name).arg(skip).arg(skip + limit as u64 - 1);
                let mut payloads = self.journal.list(&command).await?;
                let (now, mut listed) = (SystemClock.now(), Vec::new());
                while !payloads.is_empty() {
                    let token = payloads.bytes()?;
                    let job = self.job(&token, now);
                    listed.push(SourceEntry { token, job, in_later_part: false });
                }
                return Ok(listed);
            }
        };
        let length_bytes = self.length_bytes().await?;
        let listed = |(member, score): (Bytes, Bytes)| SourceEntry {
            token: token(&score, &member),
            job: self.waiting(length_bytes, &member, &score),
            in_later_part: part == ORDER,
        };
        Ok(entries.into_iter().map(listed).collect())
    }

    async fn take(&self, part: usize, requests: &[TakeRequest]) -> Result<Vec<bool>> {
        let zset = include_str!("take_zset.lua");
        let waiting = [self.due.as_str(), self.journal.key(), &self.order];
        match part {
            ORDER => self.journal.take(zset, &waiting, "1", requests).await,
            // An entry in the order list by now was added to its end after the first part.
            DUE => self.journal.take(zset, &waiting, "-1", requests).await,
            _ => {
                let keys = [self.name.as_str(), self.journal.key()];
                self.journal.take(include_str!("take_list.lua"), &keys, "1", requests).await
            }
        }
    }

    fn journal(&self) -> &dyn ImportJournal {
        &self.journal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_fits_both_formats_is_read_in_that_of_the_others() {
        let empty = Bytes::from_static(b"\x08ABCDEFG\x01\0\0\0\0\0\0\0\0");
        let others: [(&[u8], &[u8]); 2] = [
            (b"\x08ABCDEFGH\x05\0\0\0\0\0\0\0hello", b""),
            (b"ABCDEFGH\x05\0\0\0\0\0\0\0hello", b"\0"),
        ];
        let score = Bytes::from_static(b"1700000000000");
        for (other, payload) in others {
            let source = RedissonSource::new("redis://localhost", "orders", Codec::Raw).unwrap();
            let waiting =
                |member: &[u8]| source.waiting(8, &Bytes::copy_from_slice(member), &score);
            assert!(waiting(&empty).unwrap_err().contains("in both formats"));
            assert_eq!(waiting(other).unwrap().payload, &b"hello"[..]);
            assert_eq!(waiting(&empty).unwrap().payload, payload);
        }
    }
}
