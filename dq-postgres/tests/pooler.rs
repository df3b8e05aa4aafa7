//! Through PgBouncer in transaction mode, where consecutive calls reach different sessions.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dq_core::{Backend, ErrorKind, JobId, Renewal, Renewed, Result, Settled};
use dq_servers::{PgBouncer, Postgres};
use dq_testkit::fixture::{
    TIMEOUT, TestRunner, assert_error, blocking, claim_for, done_settlements, job, retry, stats,
    wait_until,
};

use crate::common::client;
use crate::connect::{connect, open};

/// A server, and PgBouncer with two connections to it.
async fn start() -> (Postgres, Arc<PgBouncer>) {
    let start = || {
        let postgres = Postgres::start();
        let pgbouncer = PgBouncer::start(&postgres);
        let file = pgbouncer.dir().join("pgbouncer.ini");
        let mut file = File::options().append(true).open(file).unwrap();
        file.write_all(b"default_pool_size = 2\n").unwrap();
        pgbouncer.stop();
        pgbouncer.restart();
        (postgres, Arc::new(pgbouncer))
    };
    blocking(start).await
}

const JOBS: usize = 500;

const LEASE: Duration = Duration::from_secs(600);

/// Claims, renews and settles until all jobs are done.
async fn work(backend: &dyn Backend, done: &Mutex<BTreeSet<JobId>>) {
    let deadline = Instant::now() + TIMEOUT;
    while done.lock().unwrap().len() < JOBS {
        assert!(Instant::now() < deadline, "{} jobs are done", done.lock().unwrap().len());
        let claimed = claim_for(backend, &["q"], 7, LEASE).await.unwrap();
        if claimed.jobs.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        let leases = claimed.jobs.iter().map(|leased| Renewal::new(leased.lease(), LEASE));
        let renewed = backend.renew(&leases.collect::<Vec<_>>()).await.unwrap();
        assert!(renewed.iter().all(|renewed| matches!(renewed, Renewed::Until(_))), "{renewed:?}");
        let settled = backend.settle(&done_settlements(&claimed)).await.unwrap();
        assert_eq!(settled, vec![Settled::Accepted; claimed.jobs.len()]);
        for leased in &claimed.jobs {
            assert!(done.lock().unwrap().insert(leased.job.id), "a job was claimed twice");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_share_two_sessions() {
    let (postgres, pgbouncer) = start().await;
    let done = Arc::new(Mutex::default());
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
    let sessions = "SELECT count(*) <= 2 FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    assert_eq!(postgres.execute(sessions), "t");
    let totals = stats(&*open(&postgres.url()).await, "q").await.totals.unwrap();
    assert_eq!((totals.created, totals.done), (JOBS as u64, JOBS as u64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_repeated_while_the_pooler_restarts_store_each_job_once() {
    let (_postgres, pgbouncer) = start().await;
    let backend = open(&pgbouncer.url()).await;
    let scheduling = async {
        for _ in 0..JOBS / 5 {
            let batch: Vec<_> = (0..5).map(|_| job("q")).collect();
            retry(|| backend.schedule(batch.clone())).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let restarting = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let pgbouncer = Arc::clone(&pgbouncer);
            let restart = move || {
                pgbouncer.kill();
                pgbouncer.restart();
            };
            blocking(restart).await;
        }
    };
    tokio::join!(scheduling, restarting);
    let counts = stats(&*backend, "q").await;
    assert_eq!((counts.ready, counts.totals.unwrap().created), (JOBS as u64, JOBS as u64));
    work(&*backend, &Mutex::default()).await;
}

/// PgBouncer tells the caller in a reply of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_can_be_repeated_whose_server_is_killed_behind_the_pooler() {
    let (postgres, pgbouncer) = start().await;
    let backend = open(&pgbouncer.url()).await;
    let blocker = client(&postgres.url()).await;
    blocker.batch_execute("BEGIN; LOCK TABLE dq.job").await.unwrap();
    let (new, calling) = (job("q"), Arc::clone(&backend));
    let batch = vec![new.clone()];
    let call = tokio::spawn(async move { calling.schedule(batch).await });
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    wait_until("the call waits", async || {
        blocker.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
    let postgres = blocking(move || {
        postgres.kill();
        postgres
    })
    .await;
    assert_error(call.await.unwrap(), ErrorKind::OutcomeUnknown, &["same job ids"]);
    let _postgres = blocking(move || {
        postgres.restart();
        postgres
    })
    .await;
    retry(|| backend.schedule(vec![new.clone()])).await;
    assert_eq!(stats(&*backend, "q").await.ready, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_statements_need_sessions_of_their_own() {
    let (postgres, pgbouncer) = start().await;
    let backend = open(&format!("{}?prepare=true", postgres.url())).await;
    for _ in 0..JOBS / 5 {
        backend.schedule((0..5).map(|_| job("q")).collect()).await.unwrap();
    }
    work(&*backend, &Mutex::default()).await;
    assert_eq!(stats(&*backend, "q").await.totals.unwrap().done, JOBS as u64);

    let through_pooler = async || -> Result<()> {
        let backend = connect(&format!("{}?prepare=true", pgbouncer.url())).await?;
        let schedule =
            |backend: Arc<dyn Backend>| async move { backend.schedule(vec![job("q")]).await };
        let calls = (0..20).map(|_| tokio::spawn(schedule(Arc::clone(&backend))));
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap()?;
        }
        Ok(())
    };
    let deadline = Instant::now() + TIMEOUT;
    let mut result = Ok(());
    while result.is_ok() {
        assert!(Instant::now() < deadline, "all calls succeed");
        result = through_pooler().await;
    }
    assert_error(result, ErrorKind::Config, &["`prepare`"]);
}

/// PgBouncer passes on no notifications.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_finds_jobs_without_hints() {
    let (_postgres, pgbouncer) = start().await;
    let (producer, consumer) = (open(&pgbouncer.url()).await, open(&pgbouncer.url()).await);
    let mut runner = TestRunner::start(&consumer, &["q"]).await;
    for _ in 0..3 {
        let jobs: Vec<_> = (0..5).map(|_| job("q")).collect();
        producer.schedule(jobs.clone()).await.unwrap();
        let scheduled = Instant::now();
        runner.expect_each_once(&jobs).await;
        assert!(scheduled.elapsed() < Duration::from_secs(20), "{:?}", scheduled.elapsed());
    }
}
