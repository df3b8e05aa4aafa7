//! Rates of bulk `schedule` calls, claims and settlements, on one connection.

use std::time::{Duration, Instant};

use super::limit::{self, Limit};
use super::server::{RedisServer, cpu_of};
use super::store::{self, RedisStore, a_week_ago};
use crate::lease;
use crate::measure::{io_runtime, median, micros, rate};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;
use crate::workload::{BATCH, BULK, PAYLOAD, Workload};

/// Share of the limit for claim and settle, for stores with a bulk target.
const DRAIN_TARGET: f64 = 0.5;

struct Turn {
    limit: Limit,
    bulk: Pace,
    drain: Pace,
}

/// Jobs per second, and server CPU microseconds per job.
#[derive(Debug, Clone, Copy)]
struct Pace {
    rate: f64,
    cpu: f64,
}

pub(super) fn measure(
    plan: &Plan,
    server: &RedisServer,
    store: &RedisStore,
) -> Result<Vec<Figure>> {
    let name = store.name;
    let keyless = turns(plan, server, store, || store::keyless_with_seed(11))?;
    let median_of = |value: fn(&Turn) -> f64| median(keyless.iter().map(value).collect());
    let mut figures = vec![
        Figure::new("limit: ZADD at depth 128, own client", median_of(|turn| turn.limit.own), "/s"),
        Figure::new(
            "limit: ZADD at depth 128, crate redis",
            median_of(|turn| turn.limit.by_crate),
            "/s",
        ),
        Figure::new("limit: Redis CPU", median_of(|turn| turn.limit.cpu), "µs/op"),
    ];
    let [bulk, bulk_cpu] =
        paces(&format!("{name}: schedule by {BULK}"), &keyless, |turn| turn.bulk);
    let what = format!("{name}: claim and settle by {BATCH}");
    let [drain, drain_cpu] = paces(&what, &keyless, |turn| turn.drain);
    figures.extend(match store.bulk_target {
        Some(bound) => {
            [bulk.ratio_at_least(bound), bulk_cpu, drain.ratio_at_least(DRAIN_TARGET), drain_cpu]
        }
        None => [bulk, bulk_cpu, drain, drain_cpu],
    });
    let keyed = turns(plan, server, store, || Workload::with_seed(11).payloads(PAYLOAD))?;
    let what = format!("{name}: schedule by {BULK}, every second job with a key");
    figures.extend(paces(&what, &keyed, |turn| turn.bulk));
    let what = format!("{name}: claim and settle by {BATCH}, every second job with a key");
    figures.extend(paces(&what, &keyed, |turn| turn.drain));
    Ok(figures)
}

fn turns(
    plan: &Plan,
    server: &RedisServer,
    store: &RedisStore,
    workload: impl Fn() -> Workload,
) -> Result<Vec<Turn>> {
    let jobs = plan.full_or_quick(100_000, 2_000);
    (0..plan.full_or_quick(7, 1)).map(|_| turn(server, store, workload(), jobs)).collect()
}

fn turn(
    server: &RedisServer,
    store: &RedisStore,
    mut workload: Workload,
    jobs: usize,
) -> Result<Turn> {
    let limit = limit::measure(server, jobs)?;
    server.clear();
    let runtime = io_runtime();
    let backend = runtime.block_on(store.open(server))?;
    let filling = backend.clone();
    let schedule = async move {
        // Generating jobs is not measured.
        let mut spent = Duration::ZERO;
        for _ in 0..jobs / BULK {
            let bulk = workload.random(a_week_ago(), BULK);
            let start = Instant::now();
            let _ = filling.schedule(bulk).await?;
            spent += start.elapsed();
        }
        Result::Ok(spent)
    };
    let draining = backend.clone();
    let drain = async move {
        let start = Instant::now();
        lease::drain(&*draining, jobs).await?;
        Result::Ok(start.elapsed())
    };
    let pace = |(took, cpu): (Duration, Duration)| Pace {
        rate: rate(jobs, took),
        cpu: micros(cpu) / jobs as f64,
    };
    // Spawned, as in an application.
    let bulk = cpu_of(server, || runtime.block_on(async { tokio::spawn(schedule).await? }))?;
    let drain = cpu_of(server, || runtime.block_on(async { tokio::spawn(drain).await? }))?;
    let turn = Turn { limit, bulk: pace(bulk), drain: pace(drain) };
    runtime.block_on(backend.close())?;
    let share = |pace: Pace| pace.rate / turn.limit.best();
    progress(format_args!(
        "{}: schedule {:.2} of the limit, {:.2} µs; claim and settle {:.2}, {:.2} µs",
        store.name,
        share(turn.bulk),
        turn.bulk.cpu,
        share(turn.drain),
        turn.drain.cpu
    ));
    Ok(turn)
}

/// Median rate, its median share of each turn's limit, and median CPU time.
fn paces(name: &str, turns: &[Turn], of: fn(&Turn) -> Pace) -> [Figure; 2] {
    let median_of = |value: &dyn Fn(&Turn) -> f64| median(turns.iter().map(value).collect());
    let rate = median_of(&|turn| of(turn).rate);
    let share = median_of(&|turn| of(turn).rate / turn.limit.best());
    let cpu = median_of(&|turn| of(turn).cpu);
    [
        Figure::new(name, rate, "jobs/s").compared_to(rate / share, "limit"),
        Figure::new(format!("{name}: Redis CPU"), cpu, "µs/job"),
    ]
}
