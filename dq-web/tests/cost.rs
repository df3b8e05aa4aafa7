//! Cost of an open dashboard: page latency with many pending jobs, and claim throughput with and
//! without a page.
//!
//! With a million pending jobs, on an idle machine:
//! `cargo test --release -p dq-web --all-features --test all cost:: -- --ignored --nocapture --test-threads=1`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{ADMIN, Fixture, events};
use dq_core::{
    Backend as _, ClaimParams, Dq, Due, DurationExt, QueueName, Settlement, Verdict, Want,
};
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinSet;

/// Queues that share the pending jobs.
const QUEUES: u64 = 10;

/// Time between page reads: the interval of the events that trigger them.
const REFRESH: Duration = Duration::from_secs(2);

struct Plan {
    pending: u64,
    /// Requests per page.
    requests: usize,
    /// Jobs claimed and settled per round.
    claimed: u64,
    /// Rounds, each with and without an open page.
    rounds: usize,
}

async fn schedule(dq: &Dq, queue: &str, number: u64, due: impl Fn(u64) -> Due) {
    const BATCH: u64 = 10_000;
    let queue = QueueName::new(queue).unwrap();
    for first in (0..number).step_by(usize::try_from(BATCH).unwrap()) {
        let jobs = (first..number.min(first + BATCH)).map(|number| {
            let payload = format!("{{\"order\":{number},\"text\":\"{:0>64}\"}}", number);
            dq_core::NewJob::new(dq.new_id(), queue.clone(), due(number), payload.into())
        });
        dq.backend().schedule(jobs.collect()).await.unwrap();
    }
}

/// Schedules, claims and settles jobs; returns jobs per second.
async fn claim_rate(dq: &Dq, jobs: u64) -> f64 {
    schedule(dq, "WORK", jobs, |_| Due::NOW).await;
    let wants = [Want::new(QueueName::new("WORK").unwrap(), 100, 10.minutes())];
    let (began, mut done) = (Instant::now(), 0);
    while done < jobs {
        let params = ClaimParams::new(&wants, 100, "cost");
        let claimed = dq.backend().claim(params).await.unwrap().jobs;
        let settlements: Vec<_> =
            claimed.iter().map(|job| Settlement::new(job.lease(), Verdict::Done)).collect();
        if settlements.is_empty() {
            assert!(began.elapsed() < 30.minutes(), "{done} of {jobs} jobs are claimed");
            tokio::time::sleep(1.millis()).await;
            continue;
        }
        dq.backend().settle(&settlements).await.unwrap();
        done += settlements.len() as u64;
    }
    jobs as f64 / began.elapsed().as_secs_f64()
}

/// Acts like an open overview: listens to events, and reads the page again and again.
async fn open_page(fixture: &Arc<Fixture>) -> JoinSet<()> {
    let (mut events, _) = events::wait_for(fixture.address, "", "event: overview").await;
    let mut tasks = JoinSet::new();
    let address = fixture.address;
    tasks.spawn(async move {
        let mut part = [0; 4096];
        loop {
            while events.read(&mut part).await.unwrap() > 0 {}
            // The server ends a stream after some seconds; browsers then reconnect.
            events = events::open(address, "").await;
        }
    });
    let fixture = Arc::clone(fixture);
    tasks.spawn(async move {
        loop {
            assert_eq!(fixture.get(ADMIN, "/").await.status, 200);
            tokio::time::sleep(REFRESH).await;
        }
    });
    tasks
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn measure(name: &str, url: &str, directory: TempDir, plan: &Plan) -> String {
    let dq = Dq::connect(url).await.unwrap();
    for queue in 0..QUEUES {
        let day = 86_400_000;
        let due = |number: u64| Due::After(Duration::from_millis(day + number * 17 % day));
        schedule(&dq, &format!("PENDING_{queue}"), plan.pending / QUEUES, due).await;
    }
    let fixture = Arc::new(Fixture::of(dq.clone(), directory).await);
    let Plan { pending, requests, claimed, rounds } = *plan;
    let mut table = format!(
        "{name}, {pending} pending jobs, {requests} requests of each page\n\n\
         | Page | p50 ms | p99 ms | max ms |\n|---|---|---|---|\n"
    );
    let bearer = format!("Bearer {ADMIN}");
    for page in [
        "/",
        "/queue?name=PENDING_0",
        "/jobs?queue=PENDING_0&state=scheduled",
        "/dead",
        "/schedules",
        "/runners",
        "/forecast",
        "/check",
        "/metrics",
        "/v1/overview",
        "/v1/queues/PENDING_0/jobs?limit=100",
    ] {
        let mut times = Vec::new();
        for _ in 0..requests {
            let began = Instant::now();
            // Unlike `get`, `raw` does not repeat the request while a check runs.
            let reply = fixture.raw("GET", page, &[("authorization", &bearer)], "").await;
            assert_eq!(reply.status, 200, "{page}: {reply:?}");
            times.push(began.elapsed().as_secs_f64() * 1_000.0);
        }
        times.sort_by(f64::total_cmp);
        let quantile = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
        let (p50, p99, max) = (quantile(0.5), quantile(0.99), quantile(1.0));
        let _ = writeln!(table, "| `{page}` | {p50:.1} | {p99:.1} | {max:.1} |");
    }
    // The first round warms up.
    claim_rate(&dq, claimed).await;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        without.push(claim_rate(&dq, claimed).await);
        let mut page = open_page(&fixture).await;
        with.push(claim_rate(&dq, claimed).await);
        let failed = page.try_join_next();
        assert!(failed.is_none(), "the events or the page could not be read: {failed:?}");
    }
    // Compare neighbours, because the machine's other load drifts between rounds.
    let ratios = with.iter().zip(&without).map(|(with, without)| with / without).collect();
    let change = (median(ratios) - 1.0) * 100.0;
    let (without, with) = (median(without), median(with));
    let _ = writeln!(
        table,
        "\n| Overview open | jobs claimed and settled in a second |\n|---|---|\n| no | {without:.0} |\n\
         | yes | {with:.0} |\n\nmedians of {rounds} rounds of {claimed} jobs each; median of their \
         ratios: {change:+.1} %"
    );
    dq.close().await.unwrap();
    table
}

async fn measure_all(plan: &Plan) -> Vec<String> {
    let directory = || tempfile::tempdir().unwrap();
    let sqlite = directory();
    let file = format!("sqlite://{}", sqlite.path().join("jobs.db").display());
    let mut tables = vec![
        measure("memory", "memory:", directory(), plan).await,
        measure("sqlite", &file, sqlite, plan).await,
    ];
    for (scheme, options) in [("redis", ""), ("redisson", ""), ("redis-expiry", "?configure=true")]
    {
        let redis = dq_servers::Redis::options().start();
        let url = redis.url().replacen("redis", scheme, 1) + options;
        tables.push(measure(scheme, &url, directory(), plan).await);
    }
    let broker = tokio::task::spawn_blocking(dq_servers::RabbitMq::start).await.unwrap();
    let virtual_host = tokio::task::block_in_place(|| broker.vhost("cost"));
    // A fifth of it is for jobs.
    let url = format!("{virtual_host}?log_size_mib=4096&response_timeout=60s");
    tables.push(measure("rabbitmq", &url, directory(), plan).await);
    tables
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, for a release build on an idle machine"]
async fn a_million_jobs() {
    let plan = Plan { pending: 1_000_000, requests: 200, claimed: 100_000, rounds: 5 };
    println!("{}", measure_all(&plan).await.join("\n"));
}

/// Checks that the measurements run; their figures mean nothing with so few jobs.
#[tokio::test(flavor = "multi_thread")]
async fn few_jobs_are_measured() {
    for table in measure_all(&Plan { pending: 1_000, requests: 2, claimed: 300, rounds: 1 }).await {
        assert_eq!(table.lines().filter(|line| line.starts_with("| `/")).count(), 11, "{table}");
        assert!(table.contains("| yes | "), "{table}");
    }
}
