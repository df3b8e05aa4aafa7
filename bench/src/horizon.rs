//! `dq-bench horizon`: a steady load on PostgreSQL, first without and then under an old snapshot,
//! which keeps the server from removing dead rows.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Args;
use dq::Dq;
use dq::backend::{Backend, ClaimParams, Claimed, Layer};
use dq_core::sync::lock;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use crate::conditions::Conditions;
use crate::measure::{Plan, Result, Times, in_task, median, progress};
use crate::plot::{Line, Scale, plot};
use crate::postgres::client;
use crate::probe::{Bench, Probe};
use crate::store::{Store, open};
use crate::table::markdown;
use crate::workload::now;

const PER_SECOND: usize = 1_000;
/// Jobs are stored in calls, each this long before its first job is due.
const CALLS_PER_SECOND: usize = 10;
const LEAD: Duration = Duration::from_secs(1);

/// How much slower jobs may start under the snapshot, at the end, than without one.
const TARGET: f64 = 1.5;

/// Runs 1,000 jobs a second on PostgreSQL for a minute, then under an old snapshot. Writes the
/// figures and a plot.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long to hold the snapshot.
    #[arg(long, value_name = "N", default_value = "600")]
    seconds: u64,
    /// The directory for the results.
    #[arg(long, default_value = "target/horizon")]
    dir: PathBuf,
}

/// Milliseconds, in a window of time.
#[derive(Debug, Clone, Copy, Serialize)]
struct Window {
    /// When it ended, in seconds since the start.
    end: f64,
    jobs: usize,
    lateness_p50: f64,
    lateness_p99: f64,
    claim_p50: f64,
    claim_p99: f64,
}

#[derive(Serialize)]
struct Report<'a> {
    conditions: &'a Conditions,
    /// Seconds since the start.
    snapshot_at: f64,
    windows: &'a [Window],
    /// At the end: rows that could not be removed, and bytes of the database.
    dead_rows: f64,
    bytes: f64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    fs::create_dir_all(&options.dir)?;
    let plan = Plan { dir: options.dir.clone(), quick: cfg!(debug_assertions) };
    let mut conditions = Conditions::observe(&options.dir, plan.quick);
    let store = Store::start("postgres", &plan.dir)?;
    println!("{conditions}");
    let window = plan.full_or_quick(Duration::from_secs(10), Duration::from_secs(1));
    let before = 6;
    let under = (options.seconds / window.as_secs()).max(1) as usize;
    let windows = in_task(measure(store.fresh()?, window, before, before + under))?;
    let dead_rows = store.sql("SELECT sum(n_dead_tup) FROM pg_stat_user_tables")?;
    let bytes = store.bytes()?;
    conditions.finish(store.version().into_iter().collect());
    let snapshot_at = windows[before - 1].end;
    let report =
        Report { conditions: &conditions, snapshot_at, windows: &windows, dead_rows, bytes };
    let base = options.dir.join("horizon-postgres");
    fs::write(base.with_extension("json"), serde_json::to_vec_pretty(&report)?)?;
    fs::write(base.with_extension("svg"), draw(&windows, snapshot_at))?;
    let mebibytes = bytes / 1_048_576.0;
    println!("\n{conditions}\n{}", table(&windows, before));
    println!("{dead_rows:.0} dead rows, {mebibytes:.0} MiB");
    progress(format_args!("written to {}.json and .svg", base.display()));
    Ok(())
}

/// Takes the snapshot after the first `before` windows.
async fn measure(
    url: String,
    window: Duration,
    before: usize,
    windows: usize,
) -> Result<Vec<Window>> {
    let timer = Arc::new(ClaimTimer { backend: open(&url).await?, times: Mutex::default() });
    let dq = Dq::builder().backend(Arc::clone(&timer) as _).connect().await?;
    let snapshot = client(&url).await?;
    let producer = tokio::spawn(produce(dq.clone()));
    let probe = Probe::timing(usize::MAX);
    let mut measured = Vec::new();
    let watching = async {
        let start = Instant::now();
        // Begins with the first job.
        tokio::time::sleep(LEAD).await;
        for number in 0..windows {
            if number == before {
                let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM dq.meta";
                snapshot.batch_execute(begin).await?;
            }
            tokio::time::sleep(window).await;
            let (lateness, claims) =
                (probe.take_lateness(), std::mem::take(&mut *lock(&timer.times)));
            let jobs = lateness.len();
            let [lateness, claims] = [lateness, claims].map(Times::new);
            let window = Window {
                end: start.elapsed().as_secs_f64(),
                jobs,
                lateness_p50: lateness.millis_at(0.5),
                lateness_p99: lateness.millis_at(0.99),
                claim_p50: claims.millis_at(0.5),
                claim_p99: claims.millis_at(0.99),
            };
            progress(format_args!("{window:?}"));
            measured.push(window);
        }
        Result::Ok(())
    };
    let mut watched = Ok(());
    probe.runner(&dq).run_until(async { watched = watching.await }).await?;
    watched?;
    producer.abort();
    if let Ok(failed) = producer.await {
        failed?;
    }
    Ok(measured)
}

/// Stores jobs that are due a millisecond apart, until it is aborted.
async fn produce(dq: Dq) -> Result<()> {
    const BATCH: usize = PER_SECOND / CALLS_PER_SECOND;
    let step = |number: usize| Duration::from_secs(1) * number as u32 / PER_SECOND as u32;
    let mut calls = interval(step(BATCH));
    calls.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut first = now() + LEAD;
    loop {
        calls.tick().await;
        let job = |number| dq.schedule::<Bench>(String::new()).at(first + step(number));
        dq.schedule_many((0..BATCH).map(job)).await?;
        first = first + step(BATCH);
    }
}

#[derive(Debug)]
struct ClaimTimer {
    backend: Arc<dyn Backend>,
    times: Mutex<Vec<Duration>>,
}

#[dq::async_trait]
impl Layer for ClaimTimer {
    fn inner(&self) -> &dyn Backend {
        &*self.backend
    }

    async fn claim(&self, params: ClaimParams<'_>) -> dq::Result<Claimed> {
        let start = Instant::now();
        let claimed = self.backend.claim(params).await;
        lock(&self.times).push(start.elapsed());
        claimed
    }
}

type Column = (&'static str, fn(&Window) -> f64);

const COLUMNS: [Column; 4] = [
    ("lateness p50", |window| window.lateness_p50),
    ("lateness p99", |window| window.lateness_p99),
    ("claim p50", |window| window.claim_p50),
    ("claim p99", |window| window.claim_p99),
];

fn draw(windows: &[Window], snapshot_at: f64) -> String {
    let line = |(name, of): Column| Line {
        name,
        points: windows.iter().map(|window| (window.end, of(window))).collect(),
    };
    let title = format!(
        "postgres: ms, by seconds; under an old snapshot from {snapshot_at:.0} s on, {PER_SECOND} jobs/s"
    );
    plot(&title, Scale::Linear, &COLUMNS.map(line))
}

/// Medians over the windows without the snapshot, and over the last ones with it: as many, if there are.
fn table(windows: &[Window], before: usize) -> String {
    let head = ["ms", "without a snapshot", "under it, at the end", "ratio", "target"];
    let last = before.min(windows.len() - before);
    let row = |(name, of): Column| {
        let at = |windows: &[Window]| median(windows.iter().map(of).collect());
        let [first, last] = [at(&windows[..before]), at(&windows[windows.len() - last..])];
        let ratio = last / first;
        let target = if ratio <= TARGET { "met" } else { "MISSED" };
        let numbers = [first, last, ratio].map(|number| format!("{number:.2}"));
        [vec![name.to_owned()], numbers.into(), vec![format!("≤ {TARGET}: {target}")]].concat()
    };
    markdown(&head.map(str::to_owned), COLUMNS.map(row))
}
