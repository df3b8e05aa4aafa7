//! The runner's timer runs jobs on time, with or without notifications.
//!
//! The sweep interval is long, so that a job found only by a sweep (a claim without a hint) is
//! later than these tests allow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::{Backend, DelayHandler, Dq, HandlerResult, JobContext, Outcome, QueueCode};
use dq_servers::Redis;
use dq_testkit::fixture::TIMEOUT;
use tokio::sync::mpsc;

use crate::expiry::fixture::{open_on, server};

const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Below the sweep interval, and below the half minute (median) in which Redis expires a key of the
/// last test.
const MAX_LATENESS: Duration = Duration::from_secs(20);

struct Reporter(mpsc::UnboundedSender<(u32, Duration)>);

impl DelayHandler for Reporter {
    type Payload = u32;

    fn code(&self) -> impl QueueCode {
        "q"
    }

    async fn handle(&self, job: JobContext, number: u32) -> HandlerResult {
        let _ = self.0.send((number, job.lateness()));
        Ok(Outcome::Done)
    }
}

/// Schedules twenty jobs, 50 ms apart after `delay`, then calls `disturb`. All jobs must run, and
/// none be later than the time `disturb` takes and the usual lateness.
async fn jobs_run_in_time(server: &Redis, delay: Duration, disturb: impl AsyncFnOnce(&Redis)) {
    let backend: Arc<dyn Backend> = Arc::new(open_on(server).await);
    let dq = Dq::builder().backend(backend).connect().await.unwrap();
    let (report, mut ran) = mpsc::unbounded_channel();
    let runner = dq.runner().without_linked_handlers().handler(Reporter(report));
    let runner = runner.sweep(SWEEP_INTERVAL).build().unwrap();
    let running = tokio::spawn(runner.run_until(std::future::pending::<()>()));
    let queue = dq.queue("q").unwrap();
    for number in 1..=20_u32 {
        let after = delay + Duration::from_millis(50) * number;
        let job = queue.schedule(number.to_string(), "application/json").after(after);
        assert!(job.await.unwrap().is_stored());
    }
    let began = Instant::now();
    disturb(server).await;
    let outage = began.elapsed();
    let mut numbers = Vec::new();
    while numbers.len() < 20 {
        let next = tokio::time::timeout(TIMEOUT, ran.recv()).await;
        let (number, late) = next.expect("a job runs").unwrap();
        assert!(late < MAX_LATENESS + outage, "job {number} is {late:?} late with {outage:?}");
        numbers.push(number);
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=20).collect::<Vec<_>>());
    running.abort();
}

#[tokio::test]
async fn jobs_run_in_time_although_subscriptions_break_and_are_forbidden() {
    jobs_run_in_time(&server(), Duration::ZERO, async |server: &Redis| {
        assert!(server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).int() > 0);
        tokio::time::sleep(Duration::from_millis(200)).await;
        // The server closes subscribed connections and refuses new subscriptions.
        assert!(server.command(&["ACL", "SETUSER", "default", "resetchannels"]).is_ok());
    })
    .await;
}

#[tokio::test]
async fn jobs_run_in_time_after_a_restart() {
    for letters in ["Ex", "\"\""] {
        let server = Redis::options().aof().set("notify-keyspace-events", letters).start();
        // The jobs become due while the server is down, so their events are lost.
        let delay = Duration::from_secs(2);
        jobs_run_in_time(&server, delay, async |server: &Redis| {
            server.kill();
            tokio::time::sleep(delay + Duration::from_secs(1)).await;
            server.restart();
        })
        .await;
    }
}

#[tokio::test]
async fn jobs_run_in_time_among_100_000_foreign_keys_with_a_time_to_live() {
    const FOREIGN: &str = "for i = 1, 100000 do
        redis.call('SET', 'session:' .. i, '', 'EX', 36000)
    end";
    const BURST: &str = "for i = 1, 20000 do
        redis.call('SET', 'cache:' .. i, '', 'PX', 500)
    end";
    jobs_run_in_time(&server(), Duration::ZERO, async |server: &Redis| {
        for script in [FOREIGN, BURST] {
            assert!(server.command(&["EVAL", script, "0"]).is_nil());
        }
    })
    .await;
}
