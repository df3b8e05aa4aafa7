//! One caller that schedules jobs one by one and waits for each reply. The reference is a bare
//! `EVALSHA` with as many bytes, which only adds a member to a sorted set.

use std::time::{Duration, Instant};

use dq::backend::Backend;

use super::server::RedisServer;
use super::store::{self, RedisStore, a_week_ago};
use crate::measure::{io_runtime, median, rate};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;
use crate::workload::PAYLOAD;

/// Keys per bare script call. The backend passes more by now. The payload is padded by their bytes,
/// so both calls have the same size; fewer keys only make the bare script faster and the comparison
/// stricter.
const KEYS: usize = 9;

/// Jobs per turn. Turns are short so that other load on the machine affects both sides.
const TURN: usize = 500;

pub(super) fn measure(
    plan: &Plan,
    server: &RedisServer,
    store: &RedisStore,
) -> Result<Vec<Figure>> {
    server.clear();
    let turns = plan.full_or_quick(31, 2);
    let runtime = io_runtime();
    let backend = runtime.block_on(store.open(server))?;
    let jobs = |seed| (backend.clone(), seed, TURN);
    // The first run connects and loads the scripts.
    let run = |(backend, seed, count): (_, _, _)| {
        runtime.block_on(async move { tokio::spawn(schedule(backend, seed, count)).await? })
    };
    run(jobs(0))?;
    let before = server.received();
    run(jobs(1))?;
    let bytes = ((server.received() - before) / TURN as f64).round() as usize;
    let bare = runtime.block_on(Bare::connect(server, bytes))?;
    let (mut rates, mut shares) = (Vec::new(), Vec::new());
    for turn in 2..2 + turns {
        let backend_rate = rate(TURN, run(jobs(turn))?);
        let mut bare = bare.clone();
        // New members each turn: adding a known one changes nothing.
        bare.number = turn * TURN as u64;
        let minimal = async move { tokio::spawn(async move { bare.turn().await }).await? };
        let bare_rate = rate(TURN, runtime.block_on(minimal)?);
        rates.push(backend_rate);
        shares.push(backend_rate / bare_rate);
    }
    runtime.block_on(backend.close())?;
    let (rate, share) = (median(rates), median(shares));
    progress(format_args!(
        "{}: {rate:.0} jobs/s one by one, {share:.2} of a bare script of {bytes} bytes",
        store.name
    ));
    // The median of the per-turn ratios. The reference is calculated from it.
    let figure = Figure::new(format!("{}: schedule, one caller", store.name), rate, "jobs/s");
    Ok(vec![figure.compared_to(rate / share, "bare EVALSHA").ratio_at_least(0.8)])
}

/// Schedules jobs one by one. Returns the time without job generation.
async fn schedule(
    backend: std::sync::Arc<dyn Backend>,
    seed: u64,
    count: usize,
) -> Result<Duration> {
    let jobs = store::keyless_with_seed(seed).random(a_week_ago(), count);
    let start = Instant::now();
    for job in jobs {
        let _ = backend.schedule(vec![job]).await?;
    }
    Ok(start.elapsed())
}

#[derive(Clone)]
struct Bare {
    connection: redis::aio::MultiplexedConnection,
    sha: String,
    payload: Vec<u8>,
    number: u64,
}

impl Bare {
    /// Pads the payload so that a call has `bytes` on the wire.
    async fn connect(server: &RedisServer, bytes: usize) -> Result<Self> {
        let client = redis::Client::open(format!("redis://{}/", server.address()))?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let text = "return redis.call('ZADD', KEYS[1], ARGV[2], ARGV[3])";
        let sha = redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut connection).await?;
        let mut bare = Self { connection, sha, payload: vec![0x5a; PAYLOAD], number: 0 };
        let missing = bytes.saturating_sub(bare.command().get_packed_command().len());
        bare.payload.resize(PAYLOAD + missing, 0x5a);
        Ok(bare)
    }

    fn command(&mut self) -> redis::Cmd {
        self.number += 1;
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(KEYS);
        for key in 0..KEYS {
            command.arg(format!("{{bare}}:{key}:BENCH"));
        }
        command.arg("{bare}:wake:BENCH").arg(1_700_000_000_000 + self.number);
        command.arg(format!("{:014}", self.number)).arg(&self.payload);
        command
    }

    async fn turn(&mut self) -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..TURN {
            let command = self.command();
            let added: u32 = command.query_async(&mut self.connection).await?;
            assert_eq!(added, 1, "the member is new");
        }
        Ok(start.elapsed())
    }
}
