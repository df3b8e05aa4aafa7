//! Measures how long other callers wait during a large purge.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{purge, queue, real_environment};
use dq_core::{Backend, NewJob, QueueName};
use dq_sqlite::{SqliteBackend, SqliteConfig};

/// Prints call times for this and another process during a purge. Run it with
/// `cargo test -p dq-sqlite --test purge_times -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn times_of_calls_during_a_purge() {
    let jobs: usize = std::env::var("JOBS").map_or(300_000, |jobs| jobs.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let environment = real_environment();
    let config = SqliteConfig::new(directory.path().join("jobs.db"));
    let open = async || Arc::new(SqliteBackend::open(&config, &environment).await.unwrap());
    let (backend, other) = (open().await, open().await);
    let hour = Duration::from_secs(3_600);
    let id = || environment.entropy.job_id(environment.clock.now());
    let start = Instant::now();
    for _ in 0..jobs / 10_000 {
        let chunk = (0..10_000).map(|_| NewJob::new(id(), queue(), hour, vec![1; 200].into()));
        let _ = backend.schedule(chunk.collect()).await.unwrap();
    }
    println!("stored {jobs} jobs in {:.1} s", start.elapsed().as_secs_f64());
    let done = Arc::new(AtomicBool::new(false));
    let mut callers = Vec::new();
    for (name, backend) in [("this process", &backend), ("another process", &other)] {
        let (backend, done, environment) =
            (Arc::clone(backend), Arc::clone(&done), environment.clone());
        callers.push(tokio::spawn(async move {
            let mut times = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let id = environment.entropy.job_id(environment.clock.now());
                let mut job = NewJob::new(id, queue(), hour, vec![1].into());
                job.queue = QueueName::new("other").unwrap();
                let start = Instant::now();
                let _ = backend.schedule(vec![job]).await.unwrap();
                times.push(start.elapsed());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            times.sort_unstable();
            let millis = |at: usize| times[(times.len() - 1) * at / 100].as_secs_f64() * 1e3;
            println!(
                "{name}: {} calls, p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
                times.len(),
                millis(50),
                millis(99),
                millis(100)
            );
        }));
    }
    let start = Instant::now();
    let affected = purge(&*backend).await;
    println!("purged {affected} jobs in {:.1} s", start.elapsed().as_secs_f64());
    done.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
}
