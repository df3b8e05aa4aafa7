//! Lateness: how long after its due time a handler starts, through the whole runner.

use std::time::{Duration, SystemTime};

use dq::backend::Backend as _;
use dq::{Dq, Timestamp};

use crate::measure::{rate, runtime};
use crate::plan::{Plan, Result, progress};
use crate::probe::{Bench, Probe};
use crate::table::Figure;
use crate::workload::{BULK, Workload};

/// Milliseconds at the median and the 99th percentile.
const TARGET: Option<(f64, f64)> = Some((1.5, 5.0));

pub(crate) fn run(plan: &Plan) -> Result<Vec<Figure>> {
    let runtime = runtime(2);
    let lead = plan.full_or_quick(Duration::from_secs(8), Duration::from_secs(1));
    let mut figures = Vec::new();
    for store in ["memory", "sqlite"] {
        let measure = |case: Case| {
            let url = match store {
                "sqlite" => format!("sqlite://{}", plan.dir.join(case.file()).display()),
                _ => "memory:".to_owned(),
            };
            // Spawned, as in an application.
            runtime.block_on(async { tokio::spawn(case.measure(store, url)).await? })
        };
        figures.extend(measure(Case::Idle { jobs: plan.full_or_quick(500, 20) })?);
        let pending = plan.full_or_quick(1_000_000, 5_000);
        figures.extend(measure(Case::Steady {
            pending,
            seconds: plan.full_or_quick(10, 1),
            lead,
        })?);
        let jobs = plan.full_or_quick(100_000, 2_000);
        for concurrency in [None, Some(256)] {
            figures.extend(measure(Case::AtOnce { jobs, concurrency, lead })?);
        }
    }
    Ok(figures)
}

/// A case to measure. All jobs must be stored within `lead`, the time from the first `schedule`
/// call to the first due time.
#[derive(Debug, Clone, Copy)]
enum Case {
    Idle {
        jobs: usize,
    },
    /// 1,000 jobs per second, one millisecond apart, while many pending jobs are due much later.
    Steady {
        pending: usize,
        seconds: usize,
        lead: Duration,
    },
    AtOnce {
        jobs: usize,
        concurrency: Option<usize>,
        lead: Duration,
    },
}

impl Case {
    const fn file(self) -> &'static str {
        match self {
            Self::Idle { .. } => "idle.db",
            Self::Steady { .. } => "steady.db",
            Self::AtOnce { concurrency: None, .. } => "at-once.db",
            Self::AtOnce { .. } => "at-once-256.db",
        }
    }

    async fn measure(self, store: &'static str, url: String) -> Result<Vec<Figure>> {
        let dq = Dq::connect(&url).await?;
        let figures = match self {
            Self::Idle { jobs } => idle(&dq, store, jobs).await?,
            Self::Steady { pending, seconds, lead } => {
                fill(&dq, pending).await?;
                steady(&dq, &format!("{store}, {pending} pending"), seconds, lead).await?
            }
            Self::AtOnce { jobs, concurrency, lead } => {
                at_once(&dq, store, jobs, concurrency, lead).await?
            }
        };
        dq.close().await?;
        Ok(figures)
    }
}

async fn idle(dq: &Dq, store: &str, jobs: usize) -> Result<Vec<Figure>> {
    let probe = Probe::timing(jobs);
    let producer = {
        let dq = dq.clone();
        tokio::spawn(async move {
            for job in 0..jobs {
                // Not a whole number of milliseconds: jobs arrive at every fraction of the
                // millisecond to which due times are rounded up.
                tokio::time::sleep(Duration::from_micros(15_300)).await;
                let delay = Duration::from_millis(5 + job as u64 % 7);
                let _ = dq.schedule::<Bench>(String::new()).after(delay).await?;
            }
            Ok::<_, dq::Error>(())
        })
    };
    probe.run(dq).await?;
    producer.await??;
    Ok(figures(&format!("{store}, idle"), &probe, TARGET))
}

async fn steady(dq: &Dq, name: &str, seconds: usize, lead: Duration) -> Result<Vec<Figure>> {
    let jobs = seconds * 1_000;
    let first = now() + lead;
    schedule(dq, jobs, |job| first + Duration::from_millis(job as u64)).await?;
    if now() > first {
        return Err("the first job was due before the last was stored".into());
    }
    let probe = Probe::timing(jobs);
    probe.run(dq).await?;
    Ok(figures(&format!("{name}, 1,000 due/s"), &probe, TARGET))
}

async fn at_once(
    dq: &Dq,
    store: &str,
    jobs: usize,
    concurrency: Option<usize>,
    lead: Duration,
) -> Result<Vec<Figure>> {
    let due = now() + lead;
    schedule(dq, jobs, |_| due).await?;
    if now() > due {
        return Err("the jobs were due before the last was stored".into());
    }
    let mut name = format!("{store}, {jobs} due at once");
    let mut probe = Probe::timing(jobs);
    if let Some(concurrency) = concurrency {
        probe = probe.concurrency(concurrency);
        name.push_str(&format!(", concurrency {concurrency}"));
    }
    probe.run(dq).await?;
    let drained = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)?
        .saturating_sub(Duration::from_millis(due.as_millis().unsigned_abs()));
    let mut figures = figures(&name, &probe, None);
    figures.push(Figure::new(format!("{name}: until all are settled"), drained.as_secs_f64(), "s"));
    figures.push(Figure::new(format!("{name}: drained"), rate(jobs, drained), "jobs/s"));
    Ok(figures)
}

/// Median, 99th percentile and maximum. `target` limits the first two, in milliseconds.
pub(crate) fn figures(name: &str, probe: &Probe, target: Option<(f64, f64)>) -> Vec<Figure> {
    let times = probe.lateness();
    let (p50, p99) = (times.millis_at(0.5), times.millis_at(0.99));
    let max = times.millis_at(1.0);
    progress(format_args!("{name}: p50 {p50:.2} ms, p99 {p99:.2} ms, max {max:.2} ms"));
    let figure = |what: &str, value| Figure::new(format!("{name}: {what}"), value, "ms");
    let (p50, p99) = (figure("p50", p50), figure("p99", p99));
    let (p50, p99) = match target {
        Some((p50_target, p99_target)) => (p50.at_most(p50_target), p99.at_most(p99_target)),
        None => (p50, p99),
    };
    vec![p50, p99, figure("max", max)]
}

pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Stores jobs due at random within the week after the measurement.
async fn fill(dq: &Dq, jobs: usize) -> Result<()> {
    let mut workload = Workload::with_seed(5);
    let later = now() + Duration::from_secs(3_600);
    for from in (0..jobs).step_by(BULK) {
        let bulk = workload.random(later, BULK.min(jobs - from));
        dq.backend().schedule(bulk).await?;
    }
    progress(format_args!("{jobs} jobs stored"));
    Ok(())
}

pub(crate) async fn schedule(dq: &Dq, jobs: usize, due: impl Fn(usize) -> Timestamp) -> Result<()> {
    for from in (0..jobs).step_by(BULK) {
        let bulk = from..jobs.min(from + BULK);
        let job = |job| dq.schedule::<Bench>(String::new()).at(due(job));
        dq.schedule_many(bulk.map(job)).await?;
    }
    Ok(())
}
