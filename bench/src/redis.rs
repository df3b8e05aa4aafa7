//! The Redis backends on a private server, compared to what the server itself can do: bulks and
//! claims with settlements to pipelined additions to a sorted set, single calls to a bare script.
//! Both take turns and report medians; a ratio is the median of the turns' ratios.

mod transfer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use redis::aio::MultiplexedConnection;

pub(crate) use self::transfer::transfer;
use crate::measure::{Plan, Result, block_on, in_task, medians, micros, rate};
use crate::store::{Store, open};
use crate::table::Figure;
use crate::workload::{BATCH, BULK, PAYLOAD, WEEK, Workload, a_week_ago, drain, fill, one_by_one};

const DEPTH: usize = 128;

fn connect(store: &Store) -> Result<redis::Connection> {
    Ok(redis::Client::open(store.redis()?.url())?.get_connection()?)
}

pub(crate) fn schedule(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let targets = match store.name {
        "redis" => Some((0.75, 0.5)),
        "redisson" => Some((0.6, 0.5)),
        _ => None,
    };
    let jobs = plan.full_or_quick(100_000, 2_000);
    let turns = plan.full_or_quick(7, 1);
    let mut figures = Vec::new();
    for keys in [false, true] {
        let [limit, limit_cpu, bulk, bulk_share, bulk_cpu, drained, drained_share, drained_cpu] =
            medians(turns, |_turn| turn(store, jobs, keys))?;
        let name = format!("{}: schedule by {BULK}", store.name);
        if keys {
            let name = format!("{name}, every second job with a key");
            figures.push(Figure::new(name, bulk, "jobs/s").compared_to(bulk / bulk_share, "limit"));
            continue;
        }
        let bulk_figure =
            Figure::new(&*name, bulk, "jobs/s").compared_to(bulk / bulk_share, "limit");
        let drain_name = format!("{}: claim and settle by {BATCH}", store.name);
        let drain_figure = Figure::new(&*drain_name, drained, "jobs/s")
            .compared_to(drained / drained_share, "limit");
        figures.extend([
            Figure::new(format!("limit: ZADD at depth {DEPTH}"), limit, "/s"),
            Figure::new("limit: Redis CPU", limit_cpu, "µs/op"),
        ]);
        figures.extend(match targets {
            Some((bulk, drain)) => {
                [bulk_figure.ratio_at_least(bulk), drain_figure.ratio_at_least(drain)]
            }
            None => [bulk_figure, drain_figure],
        });
        figures.extend([
            Figure::new(format!("{name}: Redis CPU"), bulk_cpu, "µs/job"),
            Figure::new(format!("{drain_name}: Redis CPU"), drained_cpu, "µs/job"),
        ]);
    }
    Ok(figures)
}

/// The limit, then bulks, then claims with settlements: each the rate, its share of the limit (not
/// of the limit itself), and microseconds of Redis CPU per job.
fn turn(store: &Store, jobs: usize, keys: bool) -> Result<[f64; 8]> {
    store.fresh()?;
    let (took, cost) = store.cost(|| add(store, jobs))?;
    let (limit, limit_cpu) = (rate(jobs, took), micros(cost.server_cpu) / jobs as f64);
    let backend = block_on(open(&store.fresh()?))?;
    let (filling, draining) = (Arc::clone(&backend), Arc::clone(&backend));
    let filling = async move {
        let mut workload = match keys {
            true => Workload::with_seed(11).payloads(PAYLOAD),
            false => Workload::keyless(11),
        };
        fill(&*filling, jobs, |bulk| workload.random(a_week_ago(), bulk)).await
    };
    let (bulk_took, bulk) = store.cost(|| in_task(filling))?;
    let draining = async move { drain(&*draining, jobs).await };
    let (drain_took, drained) = store.cost(|| in_task(draining))?;
    block_on(backend.close())?;
    let pace = |took: Duration, cpu: Duration| {
        let rate = rate(jobs, took);
        [rate, rate / limit, micros(cpu) / jobs as f64]
    };
    let [bulk, bulk_share, bulk_cpu] = pace(bulk_took, bulk.server_cpu);
    let [drained, drained_share, drained_cpu] = pace(drain_took, drained.server_cpu);
    Ok([limit, limit_cpu, bulk, bulk_share, bulk_cpu, drained, drained_share, drained_cpu])
}

/// Additions to one sorted set on one connection, with random scores and members as large as
/// Redisson's for the same payload: a 1-byte length and an 8-byte id, an 8-byte length and the
/// payload. The time is without encoding.
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
