//! The limit for backend rates: `ZADD` to one sorted set on one connection, with 128-command
//! pipelines, random scores and 117-byte members. Redisson's members have this size for the
//! measured payloads.
//!
//! Measured with a minimal client, which encodes requests before the clock starts, and with the
//! `redis` crate, which encodes pipelines while it runs. The faster one counts.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use super::server::{RedisServer, cpu_of};
use super::wire::{Wire, command};
use crate::measure::{io_runtime, micros, rate};
use crate::plan::{Result, progress};
use crate::workload::{PAYLOAD, WEEK};

const DEPTH: usize = 128;

/// Bytes per member, as in Redisson: a 1-byte length and an 8-byte id, an 8-byte length and the
/// payload.
const MEMBER: usize = 1 + 8 + 8 + PAYLOAD;

const KEY: &str = "limit";

#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) own: f64,
    pub(super) by_crate: f64,
    /// Server CPU microseconds per addition, with the minimal client.
    pub(super) cpu: f64,
}

impl Limit {
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
