//! The measurements. Each begins with an empty store.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::peer::Peer;
use super::worker::{Run, Worker};
use crate::measure::{Result, block_on, micros};
use crate::postgres::client;
use crate::store::Store;
use crate::table::grouped;

pub(super) type Rows = Vec<(String, String)>;
const FAR: Duration = Duration::from_secs(24 * 3_600);
pub(super) const PATIENCE: Duration = Duration::from_secs(180);
/// How long to wait for a killed worker's jobs. By default, Celery gives a lost worker's job to
/// another worker after an hour.
const RECOVERY: Duration = Duration::from_secs(180);

pub(crate) struct Sizes {
    bulk: usize,
    single: usize,
    no_op: usize,
    snapshot: usize,
    pending: &'static [usize],
    late_rate: usize,
    late_seconds: usize,
    idle: Duration,
    killed: usize,
    pub(super) limited: usize,
    pub(super) slots: usize,
}

impl Sizes {
    pub(crate) const FULL: Self = Self {
        bulk: 100_000,
        single: 2_000,
        no_op: 20_000,
        snapshot: 100_000,
        pending: &[10_000, 100_000],
        late_rate: 200,
        late_seconds: 10,
        idle: Duration::from_secs(20),
        killed: 200,
        limited: 10_000,
        slots: 300,
    };
    pub(crate) const QUICK: Self = Self {
        bulk: 1_000,
        single: 50,
        no_op: 500,
        snapshot: 2_000,
        pending: &[1_000],
        late_rate: 50,
        late_seconds: 2,
        idle: Duration::from_secs(2),
        killed: 40,
        limited: 500,
        slots: 20,
    };
}

/// A due time as the peers expect it.
fn millis_from_now(after: Duration) -> Result<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)? + after;
    Ok(i64::try_from(since.as_millis())?)
}

/// A row with the bytes in PostgreSQL's log per job, if there is one.
fn log_row(
    name: &str,
    before: Option<f64>,
    after: Option<f64>,
    jobs: f64,
) -> Option<(String, String)> {
    Some((name.to_owned(), grouped((after? - before?) / jobs)))
}

/// A row with the server's CPU microseconds per job, if there is a server.
fn busy_row(
    name: &str,
    before: Option<Duration>,
    after: Option<Duration>,
    jobs: f64,
) -> Option<(String, String)> {
    let busy = micros(after? - before?) / jobs;
    Some((name.to_owned(), format!("{busy:.1}")))
}

pub(super) fn bulk(peer: &Peer, store: &Store, sizes: &Sizes, _: bool) -> Result<Rows> {
    store.fresh()?;
    let (address, far) = (store.address(), millis_from_now(FAR)?);
    // Creates the tables.
    peer.store(&address, 1, "single", far, 0)?;
    let (bytes, log, busy) = (store.bytes()?, store.wal(), store.cpu()?);
    let seconds = peer.store(&address, sizes.bulk, "bulk", far, 0)?;
    let jobs = sizes.bulk as f64;
    let bytes = (store.bytes()? - bytes) / jobs;
    let mut rows = vec![("store delayed jobs in bulk, jobs/s".to_owned(), grouped(jobs / seconds))];
    rows.extend(busy_row("… server CPU per job, µs", busy, store.cpu()?, jobs));
    rows.extend(log_row("… bytes of log per job", log, store.wal(), jobs));
    rows.push((String::from("bytes in the store per pending job"), grouped(bytes)));
    Ok(rows)
}

pub(super) fn single(peer: &Peer, store: &Store, sizes: &Sizes, _: bool) -> Result<Rows> {
    store.fresh()?;
    let seconds = peer.store(&store.address(), sizes.single, "single", millis_from_now(FAR)?, 0)?;
    let rate = grouped(sizes.single as f64 / seconds);
    Ok(vec![("store one after the other, jobs/s".to_owned(), rate)])
}

pub(super) fn no_op(peer: &Peer, store: &Store, sizes: &Sizes, _: bool) -> Result<Rows> {
    store.fresh()?;
    let address = store.address();
    let jobs = sizes.no_op.min(peer.max_due);
    peer.store(&address, jobs, "bulk", 0, 0)?;
    let (log, busy) = (store.wal(), store.cpu()?);
    let worker = Worker::start(peer, &address, 0)?;
    let runs = worker.runs(jobs, PATIENCE);
    let ran = runs.len() as f64;
    let busy = busy_row("… server CPU per job, µs (run)", busy, store.cpu()?, ran);
    // Some libraries settle in the background.
    thread::sleep(Duration::from_secs(1));
    let log = log_row("… bytes of log per job (run)", log, store.wal(), ran);
    let rate = rate(&runs)?;
    let name = "run empty handlers, 16 at once, jobs/s".to_owned();
    let mut note = String::new();
    if jobs < sizes.no_op {
        note = format!(" (of {})", grouped(jobs as f64));
    }
    if runs.len() < jobs {
        note += " (not all)";
    }
    Ok([(name, format!("{}{note}", grouped(rate)))].into_iter().chain(busy).chain(log).collect())
}

/// Jobs started a second.
pub(super) fn rate(runs: &[Run]) -> Result<f64> {
    let starts = || runs.iter().map(|run| run.started);
    let (Some(first), Some(last)) = (starts().min(), starts().max()) else {
        return Err("no job has run".into());
    };
    Ok(runs.len() as f64 / ((last - first) as f64 / 1e6))
}

/// Under an old snapshot, the server cannot remove dead rows.
pub(super) fn snapshot(peer: &Peer, store: &Store, sizes: &Sizes, _: bool) -> Result<Rows> {
    if store.name != "postgres" {
        return Ok(Vec::new());
    }
    let url = store.fresh()?;
    peer.store(&url, sizes.snapshot, "bulk", 0, 0)?;
    let snapshot = block_on(client(&url))?;
    block_on(snapshot.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1"))?;
    let mut runs = Worker::start(peer, &url, 0)?.runs(sizes.snapshot, PATIENCE);
    runs.sort_unstable_by_key(|run| run.started);
    let tenth = runs.len() / 10;
    let (first, last) = (rate(&runs[..tenth])?, rate(&runs[runs.len() - tenth..])?);
    let name = format!("the same under an old snapshot, first / last tenth of {}", sizes.snapshot);
    let mut text = format!("{} / {}", grouped(first), grouped(last));
    if runs.len() < sizes.snapshot {
        text += &format!(" (of {} in {} s)", grouped(runs.len() as f64), PATIENCE.as_secs());
    }
    Ok(vec![(name, text)])
}

pub(super) fn late(peer: &Peer, store: &Store, sizes: &Sizes, million: bool) -> Result<Rows> {
    let mut rows = Vec::new();
    let pending = sizes.pending.iter().copied().chain(million.then_some(1_000_000));
    for pending in pending {
        store.fresh()?;
        let address = store.address();
        peer.store(&address, pending, "bulk", millis_from_now(FAR)?, 0)?;
        let worker = ready(peer, &address)?;
        let count = sizes.late_rate * sizes.late_seconds;
        let first = millis_from_now(Duration::from_secs(6))?;
        peer.store(&address, count, "bulk", first, sizes.late_rate)?;
        let runs = worker.runs(count, PATIENCE);
        let name = format!(
            "lateness, {} due a second beside {pending}: p50 / p99 / max, ms",
            sizes.late_rate
        );
        rows.push((name, lateness(&runs, count)));
    }
    Ok(rows)
}

fn ready(peer: &Peer, address: &str) -> Result<Worker> {
    let worker = Worker::start(peer, address, 0)?;
    peer.store(address, 1, "single", 0, 0)?;
    match worker.runs(1, PATIENCE).is_empty() {
        true => Err(format!("{} has run no job within {PATIENCE:?}", peer.name).into()),
        false => Ok(worker),
    }
}

fn lateness(runs: &[Run], expected: usize) -> String {
    let mut times: Vec<i64> = runs.iter().map(|run| run.lateness).collect();
    times.sort_unstable();
    let Some(last) = times.last() else { return "none has run".to_owned() };
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    let mut text = format!("{:.1} / {:.1} / {:.1}", at(0.5), at(0.99), *last as f64 / 1e3);
    if times[0] < 0 {
        text += &format!(", early by up to {:.1}", -times[0] as f64 / 1e3);
    }
    if runs.len() < expected {
        text += &format!(", {} not run", expected - runs.len());
    }
    text
}

pub(super) fn idle(peer: &Peer, store: &Store, sizes: &Sizes, _: bool) -> Result<Rows> {
    if store.redis().is_err() {
        return Ok(Vec::new());
    }
    store.fresh()?;
    // Includes commands in scripts, but not this call: Redis counts a command once it has run.
    let commands = || store.info("total_commands_processed");
    let worker = ready(peer, &store.address())?;
    thread::sleep(sizes.idle / 4);
    let before = commands()?;
    thread::sleep(sizes.idle);
    // Minus one: the previous query counts too.
    let run = commands()? - before - 1.0;
    drop(worker);
    let rate = run / sizes.idle.as_secs_f64();
    Ok(vec![("idle worker, commands/s (those in scripts, too)".to_owned(), format!("{rate:.1}"))])
}

pub(super) fn kill(peer: &Peer, store: &Store, sizes: &Sizes, _: bool) -> Result<Rows> {
    store.fresh()?;
    let address = store.address();
    peer.store(&address, sizes.killed, "bulk", 0, 0)?;
    let worker = Worker::start(peer, &address, 500)?;
    let mut times: BTreeMap<usize, usize> = BTreeMap::new();
    let mut count = |runs: Vec<Run>| {
        for run in runs {
            *times.entry(run.number).or_default() += 1;
        }
        times.len()
    };
    count(worker.runs(sizes.killed / 4, PATIENCE));
    // Jobs end together. Half a job later, the next ones are running.
    thread::sleep(Duration::from_millis(250));
    let done = count(worker.kill()?);
    let (killed, next) = (Instant::now(), Worker::start(peer, &address, 500)?);
    let left = sizes.killed - done;
    let mut seen = done;
    let mut recovered = killed.elapsed();
    while seen < sizes.killed && killed.elapsed() < RECOVERY {
        let runs = next.runs(1, Duration::from_secs(1));
        if !runs.is_empty() {
            recovered = killed.elapsed();
        }
        seen = count(runs);
    }
    drop(next);
    let missing = sizes.killed - seen;
    let twice = times.values().filter(|times| **times > 1).count();
    let mut text = match missing {
        0 => {
            format!("none of {left} lost; the last one ran {:.0} s later", recovered.as_secs_f64())
        }
        _ => format!("{missing} of {left} not run within {} s", RECOVERY.as_secs()),
    };
    if twice > 0 {
        text += &format!("; {twice} finished twice");
    }
    Ok(vec![("worker killed (SIGKILL) with 16 jobs running".to_owned(), text)])
}
