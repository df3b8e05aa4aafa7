//! The Redis backends on a private server, compared to what the server itself can do: bulks and
//! claims with settlements to pipelined additions to a sorted set, single calls to a bare script.
//! Both take turns and report medians; a ratio is the median of the turns' ratios.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use redis::ConnectionLike as _;
use redis::aio::MultiplexedConnection;

use crate::measure::{block_on, in_task, medians, micros, rate};
use crate::plan::{Plan, Result};
use crate::store::{Store, open};
use crate::table::Figure;
use crate::workload::{BATCH, BULK, PAYLOAD, WEEK, Workload, a_week_ago, drain, fill, one_by_one};

/// Commands per pipeline.
const DEPTH: usize = 128;

/// Rates of bulk `schedule` calls, claims and settlements, on one connection.
pub(crate) fn schedule(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    // As shares of the limit.
    let (bulk_target, drain_target) = match store.name {
        "redis" => (Some(0.75), Some(0.5)),
        "redisson" => (Some(0.6), Some(0.5)),
        _ => (None, None),
    };
    let bulk_name = format!("{}: schedule by {BULK}", store.name);
    let bulk_with_keys_name = format!("{bulk_name}, every second job with a key");
    let drain_name = format!("{}: claim and settle by {BATCH}", store.name);
    let keyless = || Workload::keyless(11);
    let with_keys = || Workload::with_seed(11).payloads(PAYLOAD);
    let [limit, bulk, drain] = median_turn(plan, store, keyless)?;
    let [_, bulk_with_keys, _] = median_turn(plan, store, with_keys)?;
    Ok(vec![
        Figure::new(format!("limit: ZADD at depth {DEPTH}"), limit.rate, "/s"),
        Figure::new("limit: Redis CPU", limit.micros, "µs/op"),
        bulk.figure(&bulk_name, bulk_target),
        bulk.cpu_figure(&bulk_name),
        drain.figure(&drain_name, drain_target),
        drain.cpu_figure(&drain_name),
        bulk_with_keys.figure(&bulk_with_keys_name, None),
    ])
}

/// How fast one kind of call is.
struct Pace {
    /// Jobs per second.
    rate: f64,
    share_of_limit: f64,
    /// Microseconds of Redis CPU per job.
    micros: f64,
}

impl Pace {
    fn figure(&self, name: &str, target: Option<f64>) -> Figure {
        let limit = self.rate / self.share_of_limit;
        let figure = Figure::new(name, self.rate, "jobs/s").compared_to(limit, "limit");
        match target {
            Some(target) => figure.ratio_at_least(target),
            None => figure,
        }
    }

    fn cpu_figure(&self, name: &str) -> Figure {
        Figure::new(format!("{name}: Redis CPU"), self.micros, "µs/job")
    }
}

/// The limit, bulks, and claims with settlements: medians over several turns.
fn median_turn(plan: &Plan, store: &Store, workload: impl Fn() -> Workload) -> Result<[Pace; 3]> {
    let jobs = plan.full_or_quick(100_000, 2_000);
    let medians: [f64; 9] = medians(plan.full_or_quick(7, 1), |_turn| {
        let turn = turn(store, jobs, workload())?;
        let limit = turn[0].0;
        let paces = turn.map(|(rate, micros)| [rate, rate / limit, micros]);
        Ok(std::array::from_fn(|value| paces[value / 3][value % 3]))
    })?;
    let (paces, _) = medians.as_chunks::<3>();
    Ok(std::array::from_fn(|kind| {
        let [rate, share_of_limit, micros] = paces[kind];
        Pace { rate, share_of_limit, micros }
    }))
}

/// Jobs per second and microseconds of Redis CPU per job, of the limit, then of bulks, then of
/// claims with settlements.
fn turn(store: &Store, jobs: usize, mut workload: Workload) -> Result<[(f64, f64); 3]> {
    store.fresh()?;
    let (limit_took, limit) = store.cost(|| add(store, jobs))?;
    let backend = block_on(open(&store.fresh()?))?;
    let (filling, draining) = (Arc::clone(&backend), Arc::clone(&backend));
    let filling =
        async move { fill(&*filling, jobs, |bulk| workload.random(a_week_ago(), bulk)).await };
    let (bulk_took, bulk) = store.cost(|| in_task(filling))?;
    let draining = async move { drain(&*draining, jobs).await };
    let (drain_took, drained) = store.cost(|| in_task(draining))?;
    block_on(backend.close())?;
    let costs = [(limit_took, limit), (bulk_took, bulk), (drain_took, drained)];
    Ok(costs.map(|(took, cost)| (rate(jobs, took), micros(cost.server) / jobs as f64)))
}

/// Additions to one sorted set on one connection, with random scores and members as large as
/// Redisson's for the same payload: a 1-byte length and an 8-byte id, an 8-byte length and the
/// payload. The time is without encoding.
fn add(store: &Store, additions: usize) -> Result<Duration> {
    let mut rng = SmallRng::seed_from_u64(7);
    let mut connection = redis::Client::open(store.redis()?.url())?.get_connection()?;
    let mut spent = Duration::ZERO;
    for done in (0..additions).step_by(DEPTH) {
        let count = DEPTH.min(additions - done);
        let mut pipeline = redis::Pipeline::with_capacity(count);
        for _ in 0..count {
            let mut member = [0; 1 + 8 + 8 + PAYLOAD];
            rng.fill_bytes(&mut member);
            let score = 1_700_000_000_000 + rng.random_range(0..WEEK);
            pipeline.cmd("ZADD").arg("limit").arg(score).arg(&member[..]);
        }
        let packed = pipeline.get_packed_pipeline();
        let start = Instant::now();
        let replies = connection.req_packed_commands(&packed, 0, count)?;
        spent += start.elapsed();
        if let Some(reply) = replies.iter().find(|reply| !matches!(reply, redis::Value::Int(_))) {
            return Err(format!("Redis replied to ZADD with {reply:?}").into());
        }
    }
    Ok(spent)
}

/// One caller that schedules jobs one by one and waits for each reply. The reference is a bare
/// `EVALSHA` with as many bytes, which only adds a member to a sorted set.
pub(crate) fn single(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    /// Jobs per turn. Turns are short so that other load on the machine affects both sides.
    const TURN: usize = 500;
    let backend = block_on(open(&store.fresh()?))?;
    let run = |seed| {
        let jobs = Workload::keyless(seed).random(a_week_ago(), TURN);
        in_task(one_by_one(Arc::clone(&backend), jobs))
    };
    // The first run connects and loads the scripts.
    run(0)?;
    let before = store.info("total_net_input_bytes")?;
    run(1)?;
    let received = store.info("total_net_input_bytes")? - before;
    let bare = block_on(Bare::connect(store, (received / TURN as f64).round() as usize))?;
    let [own_rate, share] = medians(plan.full_or_quick(31, 2), |turn| {
        let seed = turn as u64 + 2;
        let own = rate(TURN, run(seed)?);
        let mut bare = bare.clone();
        // New members each turn: adding a known one changes nothing.
        let numbers = seed * TURN as u64..(seed + 1) * TURN as u64;
        let bare = rate(TURN, in_task(async move { bare.add(numbers).await })?);
        Ok([own, own / bare])
    })?;
    block_on(backend.close())?;
    let figure = Figure::new(format!("{}: schedule, one caller", store.name), own_rate, "jobs/s");
    Ok(vec![figure.compared_to(own_rate / share, "bare EVALSHA").ratio_at_least(0.8)])
}

#[derive(Clone)]
struct Bare {
    connection: MultiplexedConnection,
    sha: String,
    payload: Vec<u8>,
}

impl Bare {
    /// Pads the payload so that a call has `bytes` on the wire.
    async fn connect(store: &Store, bytes: usize) -> Result<Self> {
        let client = redis::Client::open(store.redis()?.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let text = "return redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])";
        let sha = redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut connection).await?;
        let mut bare = Self { connection, sha, payload: vec![0x5a; PAYLOAD] };
        let missing = bytes.saturating_sub(bare.command(0).get_packed_command().len());
        bare.payload.resize(PAYLOAD + missing, 0x5a);
        Ok(bare)
    }

    fn command(&self, number: u64) -> redis::Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(1).arg("bare").arg(1_700_000_000_000 + number);
        command.arg(format!("{number:014}")).arg(&self.payload);
        command
    }

    async fn add(&mut self, numbers: std::ops::Range<u64>) -> Result<Duration> {
        let start = Instant::now();
        for number in numbers {
            let added: u32 = self.command(number).query_async(&mut self.connection).await?;
            assert_eq!(added, 1, "the member is new");
        }
        Ok(start.elapsed())
    }
}
