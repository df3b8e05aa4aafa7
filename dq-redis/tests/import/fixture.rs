//! An in-memory import target, and a Redisson delayed queue as the source.

use std::sync::Arc;

use dq_core::{Dq, DurationExt, MemoryBackend, Timestamp, VirtualClock};
use dq_servers::{Connection, Redis};
use dq_testkit::fixture::run_due;

pub(crate) const NOW: i64 = 1_800_000_000_000;

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

    pub(crate) async fn run_due(&self) -> Vec<String> {
        run_due(&**self.dq.backend(), "Q").await
    }

    /// Runs all jobs: due now, after a day, and after 99 more years, which includes parked jobs
    /// (due in ten years). Returns their payloads.
    pub(crate) async fn run_all(&self) -> Vec<String> {
        let mut ran = self.run_due().await;
        for step in [1.days(), (99 * 365).days()] {
            self.clock.advance(step);
            ran.extend(self.run_due().await);
        }
        ran
    }
}

pub(crate) struct Redisson {
    pub(crate) redis: Connection,
    pub(crate) name: String,
    pub(crate) due: String,
    pub(crate) order: String,
}

pub(crate) const CURRENT: &str = "struct.pack('Bc0Lc0', 8, ARGV[1], #ARGV[2], ARGV[2])";
pub(crate) const LEGACY: &str = "struct.pack('dLc0', tonumber(ARGV[1]), #ARGV[2], ARGV[2])";

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

    /// The script `pack` packs the entry.
    pub(crate) fn offer(
        &mut self,
        pack: &str,
        id: u32,
        payload: &str,
        due: i64,
        in_order_list: bool,
    ) {
        let script = format!(
            "local member = {pack} \
             redis.call('ZADD', KEYS[1], ARGV[3], member) \
             if ARGV[4] == '1' then redis.call('RPUSH', KEYS[2], member) end"
        );
        let (id, due) = (format!("{id:08}"), due.to_string());
        let in_order_list = u8::from(in_order_list).to_string();
        let words =
            ["EVAL", &script, "2", &self.due, &self.order, &id, payload, &due, &in_order_list];
        let _ = self.redis.command(&words);
    }

    pub(crate) fn current(&mut self, id: u32, payload: &str, due: i64) {
        self.offer(CURRENT, id, payload, due, true);
    }

    pub(crate) fn push(&mut self, payload: &str) {
        self.redis.command(&["RPUSH", &self.name, payload]);
    }

    /// As a Java client does ten milliseconds after [`NOW`].
    pub(crate) fn transfer(&mut self) {
        let until = (NOW + 10).to_string();
        let keys = [&self.due, &self.order, &self.name];
        let words = ["EVAL", TRANSFER, "3", keys[0], keys[1], keys[2], &until];
        let _ = self.redis.command(&words);
    }

    pub(crate) fn poll(&mut self) -> Option<String> {
        let taken = self.redis.command(&["LPOP", &self.name]);
        (!taken.is_nil()).then(|| taken.text())
    }

    pub(crate) fn counts(&mut self) -> [i64; 4] {
        let journal = format!("dq_import:{{{}}}", self.name);
        [("ZCARD", &self.due), ("LLEN", &self.order), ("LLEN", &self.name), ("HLEN", &journal)]
            .map(|(count, key)| self.redis.command(&[count, key]).int())
    }
}
