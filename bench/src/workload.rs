//! Generated jobs. By default they resemble application jobs: payloads from 100 bytes to 1 KiB, and
//! a key on every second job.

use std::ops::RangeInclusive;

use bytes::Bytes;
use dq::{Due, Entropy, JobKey, NewJob, QueueName, Timestamp};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

pub(crate) const QUEUE: &str = "BENCH";

/// Queue names; the first is [`QUEUE`].
pub(crate) fn queues(count: usize) -> Vec<QueueName> {
    let name = |number| match number {
        0 => QUEUE.to_owned(),
        _ => format!("{QUEUE}_{number}"),
    };
    let queue = |number| QueueName::new(name(number)).expect("the name is valid");
    (0..count).map(queue).collect()
}

/// Seven days in milliseconds, the range for random due times.
pub(crate) const WEEK: i64 = 7 * 86_400_000;

/// Bytes per payload where all have the same length. With its 16-byte id, a job is then about as
/// large as the sorted-set member used as the Redis reference (`redis/limit.rs`).
pub(crate) const PAYLOAD: usize = 100;

/// Jobs per claim and per settlement.
pub(crate) const BATCH: usize = 100;

/// Jobs per `schedule` call.
pub(crate) const BULK: usize = 1_000;

/// Generates jobs; the same seed gives the same jobs.
#[derive(Debug)]
pub(crate) struct Workload {
    rng: SmallRng,
    /// Payloads are slices of this pool, which makes generating cheap.
    pool: Bytes,
    entropy: Entropy,
    /// Each job goes to one of these at random.
    queues: Vec<QueueName>,
    next: u64,
    lengths: RangeInclusive<usize>,
    keys: bool,
}

impl Workload {
    /// Job ids depend on seed and time, so each measurement has its own seed.
    pub(crate) fn with_seed(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut pool = vec![0; 1 << 20];
        rng.fill_bytes(&mut pool);
        Self {
            rng,
            pool: pool.into(),
            entropy: Entropy::seeded(seed),
            queues: queues(1),
            next: 0,
            lengths: 100..=1_024,
            keys: true,
        }
    }

    pub(crate) fn numbered_from(self, next: u64) -> Self {
        Self { next, ..self }
    }

    pub(crate) fn payloads(self, bytes: usize) -> Self {
        Self { lengths: bytes..=bytes, ..self }
    }

    pub(crate) fn spread_over(self, queues: Vec<QueueName>) -> Self {
        Self { queues, ..self }
    }

    pub(crate) fn without_keys(self) -> Self {
        Self { keys: false, ..self }
    }

    pub(crate) fn within_a_week(&mut self, now: Timestamp) -> Timestamp {
        Timestamp::from_millis(now.as_millis() + self.rng.random_range(0..WEEK))
    }

    pub(crate) fn job(&mut self, now: Timestamp, due: Timestamp) -> NewJob {
        let number = self.next;
        self.next += 1;
        let len = self.rng.random_range(self.lengths.clone());
        let from = self.rng.random_range(0..self.pool.len() - len);
        let payload = self.pool.slice(from..from + len);
        let id = self.entropy.job_id(now);
        let queue = self.queues[self.rng.random_range(0..self.queues.len())].clone();
        let job = NewJob::new(id, queue, Due::At(due), payload);
        if self.keys && has_key(number) { job.key(key(number)) } else { job }
    }

    pub(crate) fn random(&mut self, now: Timestamp, count: usize) -> Vec<NewJob> {
        let job = |_| {
            let due = self.within_a_week(now);
            self.job(now, due)
        };
        (0..count).map(job).collect()
    }

    pub(crate) fn in_order(&mut self, now: Timestamp, count: usize) -> Vec<NewJob> {
        let job = |_| {
            let after = i64::try_from(self.next).expect("few jobs");
            self.job(now, Timestamp::from_millis(now.as_millis() + after))
        };
        (0..count).map(job).collect()
    }
}

pub(crate) const fn has_key(number: u64) -> bool {
    number.is_multiple_of(2)
}

/// A 25-character key that begins with a pseudorandom number, so that consecutive jobs' keys lie
/// far apart in an index.
pub(crate) fn key(number: u64) -> JobKey {
    JobKey::new(format!("{:016x}-{number:08x}", scatter(number))).expect("the key is valid")
}

/// A pseudorandom number, different for each argument (splitmix64).
pub(crate) const fn scatter(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
