//! Limits: what they cost while they do not bind, and how soon a freed slot is used by another
//! process.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dq::backend::{Backend, ClaimParams, Settlement, Want};
use dq::config::QueueSettings;
use dq::{Dq, Flow, Verdict};

use crate::measure::{Plan, Result, Times, block_on, in_task, median, medians, rate};
use crate::path;
use crate::peers::{OWN_QUEUE, Peer, Worker};
use crate::probe::{Probe, concurrency_name};
use crate::store::Store;
use crate::table::Figure;

const GROUPS: usize = 1_000;

const PAUSE: Duration = Duration::from_millis(100);

const PAGE: usize = 8_192;

/// More than the slots of the runner.
const NOT_BINDING: u32 = 100_000;

type Settings = fn(QueueSettings) -> QueueSettings;

/// Each with the number of groups and the least wanted ratio.
const COSTS: [(&str, Settings, usize, f64); 3] = [
    ("a limit that does not bind", |it| it.max_running(NOT_BINDING), 0, 0.95),
    (
        "a rate that does not bind",
        |it| it.rate("10000/1s burst 10000".parse().expect("a rate")),
        0,
        0.95,
    ),
    ("1,000 groups that are not full", |it| it.group_max_running(NOT_BINDING), GROUPS, 0.8),
];

/// The whole path with limits relative to without, in turns.
pub(crate) fn costs(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    // The burst of the rate, which so never binds.
    let jobs = plan.full_or_quick(10_000, 2_000);
    let mut figures = Vec::new();
    for concurrency in [Some(256), None] {
        let measure = |settings: Settings, groups| -> Result<f64> {
            let dq = block_on(Dq::connect(&store.fresh()?))?;
            if groups > 0 && !dq.backend().capabilities().groups {
                return Ok(f64::NAN);
            }
            let probe = Probe::counting(jobs).settings(settings).concurrency(concurrency);
            let (_, cost) = store.cost(|| in_task(path::whole(dq.clone(), jobs, groups, probe)))?;
            block_on(dq.close())?;
            Ok(rate(jobs, cost.wall))
        };
        let mut without = Vec::new();
        let ratios: [f64; 3] = medians(plan.full_or_quick(7, 1), |turn| {
            // Another one comes first in each turn, because the machine's other work varies.
            let mut rates = [f64::NAN; 4];
            for number in (0..4).map(|number| (number + turn) % 4) {
                rates[number] = match number.checked_sub(1) {
                    None => measure(|it| it, 0)?,
                    Some(number) => measure(COSTS[number].1, COSTS[number].2)?,
                };
            }
            without.push(rates[0]);
            Ok([1, 2, 3].map(|number| rates[number] / rates[0]))
        })?;
        let without = median(without);
        let slots = concurrency_name(concurrency);
        let name = |what| format!("{}: whole path, {what}, {slots}", store.name);
        figures.push(Figure::new(name("no limit"), without, "jobs/s"));
        for ((what, .., wanted), ratio) in COSTS.into_iter().zip(ratios) {
            if !ratio.is_nan() {
                let figure = Figure::new(name(what), without * ratio, "jobs/s");
                figures.push(figure.ratio(ratio, "of no limit").ratio_at_least(wanted));
            }
        }
    }
    Ok(figures)
}

/// From a settlement in this process to the start of the waiting job in another, with one slot.
/// Beside it, two writes to the disk: on most stores, the settlement waits for one and the claim
/// for another.
pub(crate) fn freed_slot(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let rounds = plan.full_or_quick(500, 20);
    let url = store.fresh()?;
    let (dq, own) = (block_on(Dq::connect(&url))?, Peer::build("dq", "", &plan.dir)?);
    let queue = dq.queue(OWN_QUEUE)?;
    block_on(queue.override_limits(Flow::UNLIMITED.max_running(1)))?;
    let wants = [Want::new(queue.name().clone(), 1, Duration::from_secs(60))];
    let job = |id| queue.schedule(format!(r#"{{"id":{id},"due":0}}"#), "application/json");
    // The other process may be faster: then this one tries again.
    let take_slot = async || {
        loop {
            let _ = job(rounds).await?;
            let claimed = dq.backend().claim(ClaimParams::new(&wants, 1, "holder")).await?;
            if let Some(leased) = claimed.jobs.first() {
                return Result::Ok(leased.lease());
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    let mut lease = block_on(take_slot())?;
    let worker = Worker::start(&own, &url, 0)?;
    thread::sleep(PAUSE * 20);
    let (mut times, mut syncs) = (Vec::new(), Vec::new());
    let file = written_file(&plan.dir)?;
    for round in 0..rounds {
        let _ = block_on(job(round).into_future())?;
        // The worker finds the queue full, and waits.
        thread::sleep(PAUSE);
        let settled = SystemTime::now().duration_since(UNIX_EPOCH)?;
        block_on(dq.backend().settle(&[Settlement::new(lease, Verdict::Done)]))?;
        let run = loop {
            let runs = worker.runs(1, PAUSE * 100);
            let run = *runs.first().ok_or("the worker has not used the slot")?;
            if run.number == round {
                break run;
            }
        };
        times.push(Duration::from_micros(run.started.unsigned_abs()).saturating_sub(settled));
        let start = Instant::now();
        for _ in 0..2 {
            file.write_all_at(&[1; PAGE], 0)?;
            file.sync_data()?;
        }
        syncs.push(start.elapsed());
        lease = block_on(take_slot())?;
    }
    drop(worker);
    block_on(dq.close())?;
    let (times, syncs) = (Times::new(times), Times::new(syncs));
    let name = format!("{}: settlement to start in another process, one slot", store.name);
    Ok(vec![
        Figure::new(format!("{name}: p50"), times.millis_at(0.5), "ms"),
        Figure::new(format!("{name}: p99"), times.millis_at(0.99), "ms").at_most(5.0),
        Figure::new(format!("{}: two writes to disk: p50", store.name), syncs.millis_at(0.5), "ms"),
        Figure::new(
            format!("{}: two writes to disk: p99", store.name),
            syncs.millis_at(0.99),
            "ms",
        ),
    ])
}

/// Written already, because a write that extends a file takes longer.
fn written_file(dir: &Path) -> Result<File> {
    let file = File::create(dir.join("written"))?;
    file.write_all_at(&[0; PAGE], 0)?;
    file.sync_all()?;
    Ok(file)
}
