//! A target in memory, a queue of Redisson, and a source that crashes at a given step.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dq_core::Backend;
use dq_core::import::{ImportSource, JournalEntry, SourceEntry, TakeRequest};
use dq_core::{
    ClaimParams, Dq, DurationExt, Error, ErrorKind, JobId, MemoryBackend, QueueName, Result,
    Settlement, Timestamp, Verdict, VirtualClock, Want, async_trait,
};
use dq_redis::RedissonSource;
use dq_servers::{Connection, Redis};

pub(crate) const NOW: i64 = 1_800_000_000_000;

/// A target in memory with a virtual clock.
pub(crate) struct Target {
    pub(crate) dq: Dq,
    pub(crate) clock: Arc<VirtualClock>,
}

impl Target {
    pub(crate) async fn new() -> Self {
        let clock = Arc::new(VirtualClock::new(Timestamp::from_millis(NOW)));
        let backend = Arc::new(MemoryBackend::new(clock.clone()));
        let dq = Dq::builder().backend(backend).clock(clock.clone()).connect().await.unwrap();
        Self { dq, clock }
    }

    /// Runs the due jobs, and returns their payloads, oldest first.
    pub(crate) async fn run_due(&self) -> Vec<String> {
        let queue = QueueName::new("Q").unwrap();
        let wants = [Want { queue, max: 100_000, lease_for: 1.minutes() }];
        let params = ClaimParams { wants: &wants, limit: 100_000, worker: "test" };
        let mut ran = Vec::new();
        for job in self.dq.backend().claim(params).await.unwrap().jobs {
            ran.push(String::from_utf8_lossy(&job.job.payload).into_owned());
            let settlement = Settlement { lease: job.lease(), verdict: Verdict::Done };
            self.dq.backend().settle(&[settlement]).await.unwrap();
        }
        ran
    }

    /// Runs all jobs, advancing the clock by a day and by 99 years.
    pub(crate) async fn run_all(&self) -> Vec<String> {
        let mut ran = self.run_due().await;
        for step in [1.days(), (99 * 365).days()] {
            self.clock.advance(step);
            ran.extend(self.run_due().await);
        }
        ran
    }
}

/// A queue of Redisson on the server.
pub(crate) struct Redisson {
    pub(crate) redis: Connection,
    pub(crate) name: String,
    pub(crate) due: String,
    pub(crate) order: String,
}

/// The packing of entries by Redisson 3.21.1 and newer, and by older versions.
pub(crate) const CURRENT: &str = "struct.pack('Bc0Lc0', 8, ARGV[1], #ARGV[2], ARGV[2])";
pub(crate) const LEGACY: &str = "struct.pack('dLc0', tonumber(ARGV[1]), #ARGV[2], ARGV[2])";

/// A Java client's transfer script, for five entries at a time.
const TRANSFER: &str = "
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], 0, ARGV[1], 'LIMIT', 0, 5)) do
      local _, payload = struct.unpack('Bc0Lc0', member)
      redis.call('RPUSH', KEYS[3], payload)
      redis.call('LREM', KEYS[2], 1, member)
      redis.call('ZREM', KEYS[1], member)
    end";

impl Redisson {
    pub(crate) fn new(server: &Redis, name: &str) -> Self {
        Self {
            redis: server.connect(),
            name: name.to_owned(),
            due: format!("redisson_delay_queue_timeout:{{{name}}}"),
            order: format!("redisson_delay_queue:{{{name}}}"),
        }
    }

    /// Adds an entry, packed by the server.
    pub(crate) fn offer(&mut self, pack: &str, id: u32, payload: &str, due: i64, listed: bool) {
        let script = format!(
            "local member = {pack} \
             redis.call('ZADD', KEYS[1], ARGV[3], member) \
             if ARGV[4] == '1' then redis.call('RPUSH', KEYS[2], member) end"
        );
        let (id, due, listed) = (format!("{id:08}"), due.to_string(), u8::from(listed).to_string());
        let words = ["EVAL", &script, "2", &self.due, &self.order, &id, payload, &due, &listed];
        let _ = self.redis.command(&words);
    }

    pub(crate) fn current(&mut self, id: u32, payload: &str, due: i64) {
        self.offer(CURRENT, id, payload, due, true);
    }

    /// Adds a payload to the destination queue.
    pub(crate) fn push(&mut self, payload: &str) {
        self.redis.command(&["RPUSH", &self.name, payload]);
    }

    /// Moves due entries to the destination queue.
    pub(crate) fn transfer(&mut self) {
        let until = (NOW + 10).to_string();
        let keys = [&self.due, &self.order, &self.name];
        let words = ["EVAL", TRANSFER, "3", keys[0], keys[1], keys[2], &until];
        let _ = self.redis.command(&words);
    }

    /// Takes a payload from the destination queue.
    pub(crate) fn poll(&mut self) -> Option<String> {
        let taken = self.redis.command(&["LPOP", &self.name]);
        (!taken.is_nil()).then(|| taken.text())
    }

    /// Numbers of entries that wait, in the order list, in the destination queue, and in the journal.
    pub(crate) fn counts(&mut self) -> [i64; 4] {
        let journal = format!("dq_import:{{{}}}", self.name);
        [("ZCARD", &self.due), ("LLEN", &self.order), ("LLEN", &self.name), ("HLEN", &journal)]
            .map(|(count, key)| self.redis.command(&[count, key]).int())
    }
}

/// A source that crashes at one of its steps.
#[derive(Debug)]
pub(crate) struct CrashingSource<'a> {
    source: &'a RedissonSource,
    steps: AtomicUsize,
    crash: usize,
}

impl<'a> CrashingSource<'a> {
    /// Steps count from 1: odd ones before a call has taken effect, even ones after it.
    pub(crate) fn new(source: &'a RedissonSource, crash: usize) -> Self {
        Self { source, steps: AtomicUsize::new(0), crash }
    }

    fn step(&self) -> Result<()> {
        if self.steps.fetch_add(1, Ordering::Relaxed) + 1 == self.crash {
            return Err(Error::new(ErrorKind::Unavailable, "the process crashed"));
        }
        Ok(())
    }

    async fn count_steps<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.step()?;
        let answer = call.await?;
        self.step()?;
        Ok(answer)
    }
}

#[async_trait]
impl ImportSource for CrashingSource<'_> {
    fn name(&self) -> String {
        self.source.name()
    }

    fn parts(&self) -> usize {
        self.source.parts()
    }

    async fn list(&self, part: usize, skip: u64, limit: usize) -> Result<Vec<SourceEntry>> {
        self.count_steps(self.source.list(part, skip, limit)).await
    }

    async fn take(&self, part: usize, requests: &[TakeRequest]) -> Result<Vec<bool>> {
        self.count_steps(self.source.take(part, requests)).await
    }

    async fn journal_entries(&self, limit: usize) -> Result<Vec<JournalEntry>> {
        self.count_steps(self.source.journal_entries(limit)).await
    }

    async fn mark_stored(&self, ids: &[JobId]) -> Result<Vec<bool>> {
        self.count_steps(self.source.mark_stored(ids)).await
    }

    async fn remove(&self, ids: &[JobId]) -> Result<()> {
        self.count_steps(self.source.remove(ids)).await
    }
}
