//! Generated jobs, and calls with many of them. By default jobs resemble an application's: payloads
//! from 100 bytes to 1 KiB, and a key on every second job.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use dq::backend::{Backend, ClaimParams, Settlement, Want};
use dq::{Due, Entropy, JobKey, Lease, NewJob, QueueName, Settled, Timestamp, Verdict};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::measure::Result;

pub(crate) const QUEUE: &str = "BENCH";

pub(crate) fn queue() -> QueueName {
    QueueName::new(QUEUE).expect("the name is valid")
}

pub(crate) fn queues(count: usize) -> Vec<QueueName> {
    let name = |number| QueueName::new(format!("{QUEUE}_{number}")).expect("the name is valid");
    std::iter::once(queue()).chain((1..count).map(name)).collect()
}

/// Seven days in milliseconds, the range for random due times.
pub(crate) const WEEK: i64 = 7 * 86_400_000;

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// Bytes per payload where all have the same length. With its 16-byte id, a job is then about as
/// large as the sorted-set member used as the Redis reference (`redis.rs`).
pub(crate) const PAYLOAD: usize = 100;

pub(crate) const BATCH: usize = 100;

pub(crate) const BULK: usize = 1_000;

pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Returns the time a week ago: random jobs within a week from then are all due.
pub(crate) fn a_week_ago() -> Timestamp {
    Timestamp::from_millis(now().as_millis() - WEEK)
}

/// Generates jobs; the same seed gives the same jobs.
#[derive(Debug)]
pub(crate) struct Workload {
    rng: SmallRng,
    /// Payloads are slices of this pool, which makes generating cheap.
    pool: Bytes,
    entropy: Entropy,
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

    pub(crate) fn keyless(seed: u64) -> Self {
        Self { keys: false, ..Self::with_seed(seed).payloads(PAYLOAD) }
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

    pub(crate) fn job(&mut self, due: Timestamp) -> NewJob {
        let number = self.next;
        self.next += 1;
        let length = self.rng.random_range(self.lengths.clone());
        let start = self.rng.random_range(0..self.pool.len() - length);
        let payload = self.pool.slice(start..start + length);
        let id = self.entropy.job_id(now());
        let queue = self.queues[self.rng.random_range(0..self.queues.len())].clone();
        let job = NewJob::new(id, queue, Due::At(due), payload);
        if self.keys && has_key(number) { job.key(key(number)) } else { job }
    }

    /// Jobs due at random within a week from `from`.
    pub(crate) fn random(&mut self, from: Timestamp, count: usize) -> Vec<NewJob> {
        self.random_within(from, WEEK, count)
    }

    pub(crate) fn random_within(
        &mut self,
        from: Timestamp,
        millis: i64,
        count: usize,
    ) -> Vec<NewJob> {
        let job = |_| {
            let after = self.rng.random_range(0..millis);
            self.job(Timestamp::from_millis(from.as_millis() + after))
        };
        (0..count).map(job).collect()
    }

    /// Jobs due one after the other, a millisecond apart.
    pub(crate) fn in_order(&mut self, from: Timestamp, count: usize) -> Vec<NewJob> {
        let job = |_| {
            let after = Duration::from_millis(self.next);
            self.job(from + after)
        };
        (0..count).map(job).collect()
    }

    pub(crate) fn after(&mut self, delay: Duration, count: usize) -> Vec<NewJob> {
        let due = now() + delay;
        (0..count).map(|_| self.job(due)).collect()
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
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Stores jobs in calls of [`BULK`]. Returns the time of the calls; `generate` takes none of it.
pub(crate) async fn fill(
    backend: &dyn Backend,
    jobs: usize,
    mut generate: impl FnMut(usize) -> Vec<NewJob>,
) -> Result<Duration> {
    let mut spent = Duration::ZERO;
    for stored in (0..jobs).step_by(BULK) {
        let bulk = generate(BULK.min(jobs - stored));
        let start = Instant::now();
        let _ = backend.schedule(bulk).await?;
        spent += start.elapsed();
    }
    Ok(spent)
}

pub(crate) async fn one_by_one(backend: Arc<dyn Backend>, jobs: Vec<NewJob>) -> Result<Duration> {
    let start = Instant::now();
    for job in jobs {
        let _ = backend.schedule(vec![job]).await?;
    }
    Ok(start.elapsed())
}

pub(crate) async fn claim(backend: &dyn Backend, max: usize) -> Result<Vec<Lease>> {
    let wants = [Want::new(queue(), max, Duration::from_secs(300))];
    let claimed = backend.claim(ClaimParams::new(&wants, max, "dq-bench")).await?;
    if claimed.jobs.len() != max {
        return Err(format!("a claim returned {} of {max} jobs", claimed.jobs.len()).into());
    }
    Ok(claimed.jobs.iter().map(|job| job.lease()).collect())
}

pub(crate) async fn settle(backend: &dyn Backend, leases: &[Lease]) -> Result<()> {
    let done = |lease: &Lease| Settlement::new(lease.clone(), Verdict::Done);
    let settlements: Vec<_> = leases.iter().map(done).collect();
    let settled = backend.settle(&settlements).await?;
    if settled.iter().any(|settled| *settled != Settled::Accepted) {
        return Err("a lease was lost".into());
    }
    Ok(())
}

/// Claims and settles due jobs, [`BATCH`] at a time; `jobs` is a multiple of it.
pub(crate) async fn drain(backend: &dyn Backend, jobs: usize) -> Result<Duration> {
    let start = Instant::now();
    for _ in 0..jobs / BATCH {
        let leases = claim(backend, BATCH).await?;
        settle(backend, &leases).await?;
    }
    Ok(start.elapsed())
}
