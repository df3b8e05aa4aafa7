//! Through PgBouncer in transaction mode, where consecutive calls reach different sessions.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dq_core::{Backend, NewJob, Renewal, Renewed, Settled};
use dq_servers::{PgBouncer, Postgres};
use dq_testkit::fixture::{
    TIMEOUT, TestRunner, blocking, claim_for, done_settlements, job, retry, stats,
};

use crate::connect::open;

/// PgBouncer with two connections to a server.
async fn start() -> (Arc<Postgres>, Arc<PgBouncer>) {
    blocking(|| {
        let postgres = Postgres::start();
        let pgbouncer = PgBouncer::start(&postgres);
        let file = pgbouncer.dir().join("pgbouncer.ini");
        let mut file = File::options().append(true).open(file).unwrap();
        file.write_all(b"default_pool_size = 2\n").unwrap();
        pgbouncer.stop();
        pgbouncer.restart();
        (Arc::new(postgres), Arc::new(pgbouncer))
    })
    .await
}

const JOBS: usize = 500;

const LEASE: Duration = Duration::from_secs(600);

/// Claims, renews and settles until all jobs are done.
async fn work(backend: &dyn Backend, done: &Mutex<BTreeSet<String>>) {
    let deadline = Instant::now() + TIMEOUT;
    while done.lock().unwrap().len() < JOBS {
        assert!(Instant::now() < deadline, "{} jobs are done", done.lock().unwrap().len());
        let claimed = retry(|| claim_for(backend, &["q"], 7, LEASE)).await;
        if claimed.jobs.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        let leases = claimed.jobs.iter().map(|leased| Renewal::new(leased.lease(), LEASE));
        let renewals: Vec<Renewal> = leases.collect();
        let renewed = retry(|| backend.renew(&renewals)).await;
        assert!(renewed.iter().all(|renewed| matches!(renewed, Renewed::Until(_))), "{renewed:?}");
        let settlements = done_settlements(&claimed);
        let settled = retry(|| backend.settle(&settlements)).await;
        assert_eq!(settled, vec![Settled::Accepted; settlements.len()]);
        for leased in &claimed.jobs {
            let is_first = done.lock().unwrap().insert(leased.job.id.to_string());
            assert!(is_first, "{} was claimed twice", leased.job.id);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_share_two_sessions() {
    let (postgres, pgbouncer) = start().await;
    let done = Arc::new(Mutex::new(BTreeSet::new()));
    let mut tasks = Vec::new();
    for _ in 0..5 {
        let (url, done) = (pgbouncer.url(), Arc::clone(&done));
        tasks.push(tokio::spawn(async move {
            let backend = open(&url).await;
            for _ in 0..JOBS / 5 / 4 {
                backend.schedule((0..4).map(|_| job("q")).collect()).await.unwrap();
            }
            work(&*backend, &done).await;
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
        AND pid <> pg_backend_pid()";
    let sessions: u32 = postgres.execute(sessions).parse().unwrap();
    assert!((1..=2).contains(&sessions), "{sessions} sessions");
    let counts = stats(&*open(&postgres.url()).await, "q").await;
    let totals = counts.totals.unwrap();
    assert_eq!((totals.created, totals.done, counts.stored()), (JOBS as u64, JOBS as u64, 0));
}

/// Each outage takes away the connections and replies of some calls. A lost claim's leases stay, so
/// only schedules are counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_repeated_while_the_pooler_restarts() {
    let (_postgres, pgbouncer) = start().await;
    let backend = open(&pgbouncer.url()).await;
    let batches: Vec<Vec<NewJob>> =
        (0..JOBS / 5).map(|_| (0..5).map(|_| job("q")).collect()).collect();
    let scheduling = async {
        for batch in &batches {
            retry(|| backend.schedule(batch.clone())).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let restarting = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let pgbouncer = Arc::clone(&pgbouncer);
            blocking(move || {
                pgbouncer.kill();
                pgbouncer.restart();
            })
            .await;
        }
    };
    tokio::join!(scheduling, restarting);
    let counts = stats(&*backend, "q").await;
    assert_eq!((counts.ready, counts.totals.unwrap().created), (JOBS as u64, JOBS as u64));
    work(&*backend, &Mutex::default()).await;
}

/// Without notifications, a runner finds jobs by its polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_finds_jobs_without_hints() {
    let (_postgres, pgbouncer) = start().await;
    let (producer, consumer) = (open(&pgbouncer.url()).await, open(&pgbouncer.url()).await);
    let mut runner = TestRunner::start(&consumer, &["q"]).await;
    for _ in 0..3 {
        let jobs: Vec<NewJob> = (0..5).map(|_| job("q")).collect();
        producer.schedule(jobs.clone()).await.unwrap();
        let scheduled = Instant::now();
        runner.expect_each_once(&jobs).await;
        let waited = scheduled.elapsed();
        println!("found after {waited:?}");
        assert!(waited < Duration::from_secs(20), "{waited:?}");
    }
}
