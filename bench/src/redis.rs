//! The Redis backends on a private server, compared to the server's own speed.
//!
//! For batches, the reference (the *limit*) is a pipeline of `ZADD`; for single calls, it is a bare
//! script. Backend and reference take turns. Figures are medians over the turns, also the ratios.

mod transfer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use redis::aio::MultiplexedConnection;

pub(crate) use self::transfer::transfer;
use crate::measure::{Plan, Result, block_on, in_task, median, medians, micros, rate};
use crate::store::{Cost, Store, open};
use crate::table::Figure;
use crate::workload::{BATCH, BULK, PAYLOAD, WEEK, Workload, a_week_ago, drain, fill, one_by_one};

/// Commands in each of the limit's pipelines.
const DEPTH: usize = 128;

fn connect(store: &Store) -> Result<redis::Connection> {
    Ok(redis::Client::open(store.redis()?.url())?.get_connection()?)
}

/// Bulks of jobs without and with keys, then their claims and settlements.
pub(crate) fn schedule(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    /// The least ratios to the limit: of bulks, and of claims with settlements.
    const TARGETS: [(&str, f64, f64); 2] = [("redis", 0.75, 0.5), ("redisson", 0.6, 0.5)];
    let target = TARGETS.iter().find(|(name, ..)| *name == store.name);
    let jobs = plan.full_or_quick(100_000, 2_000);
    let turns = |keys| -> Result<Vec<Turn>> {
        (0..plan.full_or_quick(7, 1)).map(|_| turn(store, jobs, keys)).collect()
    };
    let bulk_name = format!("{}: schedule by {BULK}", store.name);
    let drain_name = format!("{}: claim and settle by {BATCH}", store.name);

    let keyless = turns(false)?;
    let limit = Pace::median(keyless.iter().map(|turn| turn.limit));
    let bulks = Pace::median(keyless.iter().map(|turn| turn.bulks));
    let drain = Pace::median(keyless.iter().map(|turn| turn.drain));
    let mut figures = vec![
        Figure::new(format!("limit: ZADD at depth {DEPTH}"), limit.per_second, "/s"),
        Figure::new("limit: Redis CPU", limit.redis_cpu, "µs/op"),
    ];
    let (bulk_figure, drain_figure) = (bulks.figure(&bulk_name), drain.figure(&drain_name));
    figures.extend(match target {
        Some((_, bulk, drain)) => {
            [bulk_figure.ratio_at_least(*bulk), drain_figure.ratio_at_least(*drain)]
        }
        None => [bulk_figure, drain_figure],
    });
    figures.extend([
        Figure::new(format!("{bulk_name}: Redis CPU"), bulks.redis_cpu, "µs/job"),
        Figure::new(format!("{drain_name}: Redis CPU"), drain.redis_cpu, "µs/job"),
    ]);

    let with_keys = Pace::median(turns(true)?.iter().map(|turn| turn.bulks));
    figures.push(with_keys.figure(&format!("{bulk_name}, every second job with a key")));
    Ok(figures)
}

#[derive(Debug, Clone, Copy)]
struct Pace {
    per_second: f64,
    /// The ratio to the limit in the same turn.
    of_limit: f64,
    /// Microseconds for each job or addition.
    redis_cpu: f64,
}

impl Pace {
    fn median(turns: impl Iterator<Item = Self> + Clone) -> Self {
        let median = |value: fn(Self) -> f64| median(turns.clone().map(value).collect());
        Self {
            per_second: median(|pace| pace.per_second),
            of_limit: median(|pace| pace.of_limit),
            redis_cpu: median(|pace| pace.redis_cpu),
        }
    }

    fn figure(self, name: &str) -> Figure {
        Figure::new(name, self.per_second, "jobs/s").ratio(self.of_limit, "limit")
    }
}

struct Turn {
    limit: Pace,
    bulks: Pace,
    /// Claims and settlements.
    drain: Pace,
}

fn turn(store: &Store, jobs: usize, keys: bool) -> Result<Turn> {
    store.fresh()?;
    let (limit_took, limit_cost) = store.cost(|| add(store, jobs))?;
    let backend = block_on(open(&store.fresh()?))?;
    let (filling, draining) = (Arc::clone(&backend), Arc::clone(&backend));
    let filling = async move {
        let mut workload = match keys {
            true => Workload::with_seed(11).payloads(PAYLOAD),
            false => Workload::keyless(11),
        };
        fill(&*filling, jobs, |bulk| workload.random(a_week_ago(), bulk)).await
    };
    let (bulks_took, bulks_cost) = store.cost(|| in_task(filling))?;
    let draining = async move { drain(&*draining, jobs).await };
    let (drain_took, drain_cost) = store.cost(|| in_task(draining))?;
    block_on(backend.close())?;
    let pace = |took: Duration, cost: Cost| Pace {
        per_second: rate(jobs, took),
        of_limit: limit_took.as_secs_f64() / took.as_secs_f64(),
        redis_cpu: micros(cost.server_cpu) / jobs as f64,
    };
    Ok(Turn {
        limit: pace(limit_took, limit_cost),
        bulks: pace(bulks_took, bulks_cost),
        drain: pace(drain_took, drain_cost),
    })
}

/// Adds members to one sorted set and returns the time without encoding.
///
/// Members are as large as Redisson's for the same payload: a 1-byte length and an 8-byte id, an
/// 8-byte length and the payload.
fn add(store: &Store, additions: usize) -> Result<Duration> {
    let mut rng = SmallRng::seed_from_u64(7);
    let mut connection = connect(store)?;
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
        spent += send(&mut connection, &pipeline, count)?;
    }
    Ok(spent)
}

fn send(
    connection: &mut redis::Connection,
    pipeline: &redis::Pipeline,
    commands: usize,
) -> Result<Duration> {
    use redis::ConnectionLike as _;
    let packed = pipeline.get_packed_pipeline();
    let start = Instant::now();
    for reply in connection.req_packed_commands(&packed, 0, commands)? {
        if let redis::Value::ServerError(error) = reply {
            return Err(format!("Redis replied with an error: {error:?}").into());
        }
    }
    Ok(start.elapsed())
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
    Ok(vec![figure.ratio(share, "bare EVALSHA").ratio_at_least(0.8)])
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
