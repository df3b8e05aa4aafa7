//! The limit to which rates of the backends are compared: `ZADD` to one sorted set on one
//! connection, with pipelines of 128 commands, random scores and members of 117 bytes, as large as
//! those of Redisson for the payloads that are measured.
//!
//! Measured with a minimal client, whose requests are encoded before the clock starts, and with pipelines
//! of the `redis` crate, which are encoded while it runs; the faster one counts.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use super::server::{RedisServer, cpu_of};
use super::wire::{Wire, command};
use crate::measure::{io_runtime, micros, rate};
use crate::plan::{Result, progress};
use crate::workload::{PAYLOAD, WEEK};

/// Commands per pipeline.
const DEPTH: usize = 128;

/// Bytes of a member. As in Redisson: an id of 8 bytes after its length in 1 byte, and the payload
/// after its length in 8 bytes.
const MEMBER: usize = 1 + 8 + 8 + PAYLOAD;

const KEY: &str = "limit";

/// Additions per second by each client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    /// With the minimal client of `wire.rs`.
    pub(super) own: f64,
    /// With pipelines of the `redis` crate.
    pub(super) by_crate: f64,
    /// CPU time of the server per addition in microseconds, with the minimal client.
    pub(super) cpu: f64,
}

impl Limit {
    /// The limit to which figures are compared.
    pub(super) fn best(self) -> f64 {
        self.own.max(self.by_crate)
    }
}

pub(super) fn measure(server: &RedisServer, additions: usize) -> Result<Limit> {
    server.clear();
    let (own, cpu) = cpu_of(server, || by_own_client(server, additions))?;
    let by_crate = by_crate(server, additions)?;
    let limit = Limit { own, by_crate, cpu: micros(cpu) / additions as f64 };
    progress(format_args!(
        "limit: {:.0} ZADD/s by the minimal client, {:.0} by the crate, {:.2} µs",
        limit.own, limit.by_crate, limit.cpu
    ));
    Ok(limit)
}

/// Scores and members, the same in every run.
fn entries(count: usize) -> Vec<(String, Vec<u8>)> {
    let mut rng = SmallRng::seed_from_u64(7);
    let entry = |_| {
        let score = 1_700_000_000_000 + rng.random_range(0..WEEK);
        let mut member = vec![0; MEMBER];
        rng.fill_bytes(&mut member);
        (score.to_string(), member)
    };
    (0..count).map(entry).collect()
}

fn by_own_client(server: &RedisServer, additions: usize) -> Result<f64> {
    let entries = entries(additions);
    let mut wire = Wire::connect(&server.address())?;
    let (mut spent, mut commands) = (Duration::ZERO, Vec::new());
    for batch in entries.chunks(DEPTH) {
        commands.clear();
        for (score, member) in batch {
            command(&mut commands, &[b"ZADD", KEY.as_bytes(), score.as_bytes(), member]);
        }
        let start = Instant::now();
        wire.exchange(&commands, batch.len())?;
        spent += start.elapsed();
    }
    Ok(rate(additions, spent))
}

fn by_crate(server: &RedisServer, additions: usize) -> Result<f64> {
    server.clear();
    let entries = entries(additions);
    let client = redis::Client::open(format!("redis://{}/", server.address()))?;
    io_runtime().block_on(async {
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut spent = Duration::ZERO;
        for batch in entries.chunks(DEPTH) {
            let mut pipeline = redis::Pipeline::with_capacity(DEPTH);
            for (score, member) in batch {
                pipeline.cmd("ZADD").arg(KEY).arg(score).arg(member);
            }
            let start = Instant::now();
            let _: Vec<u32> = pipeline.query_async(&mut connection).await?;
            spent += start.elapsed();
        }
        Ok(rate(additions, spent))
    })
}
