//! The runner's timer runs jobs on time, with or without notifications.
//!
//! A sweep is a claim without a hint, made by the runner at a fixed interval. Here the interval is
//! long, so that a job found only by a sweep is later than these tests allow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::{Backend, DelayHandler, Dq, HandlerResult, JobContext, Outcome, QueueCode, Result};
use dq_servers::Redis;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::fixture::{MAX_WAIT, open_on, server};

const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum lateness of a job started by the timer. Far above the usual, for busy machines, but
/// below the sweep interval and below the half minute (median) that Redis takes to expire one of
/// the last test's keys.
const MAX_LATENESS: Duration = Duration::from_secs(20);

struct Ran {
    number: u32,
    lateness: Duration,
}

struct Reporter(mpsc::UnboundedSender<Ran>);

impl DelayHandler for Reporter {
    type Payload = u32;

    fn code(&self) -> impl QueueCode {
        "q"
    }

    async fn handle(&self, job: JobContext, number: u32) -> HandlerResult {
        let _ = self.0.send(Ran { number, lateness: job.lateness() });
        Ok(Outcome::Done)
    }
}

struct Fixture {
    dq: Dq,
    ran: mpsc::UnboundedReceiver<Ran>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<()>>,
}

impl Fixture {
    async fn new(server: &Redis) -> Self {
        let backend: Arc<dyn Backend> = Arc::new(open_on(server).await);
        let dq = Dq::builder().backend(backend).connect().await.unwrap();
        let (report, ran) = mpsc::unbounded_channel();
        let runner =
            dq.runner().without_linked_handlers().handler(Reporter(report)).sweep(SWEEP_INTERVAL);
        let (stop, stopped) = oneshot::channel::<()>();
        let runner = runner.build().unwrap();
        let running = tokio::spawn(runner.run_until(async {
            let _ = stopped.await;
        }));
        Self { dq, ran, stop, running }
    }

    async fn schedule(&self, number: u32, after: Duration) {
        let queue = self.dq.queue("q").unwrap();
        let job = queue.schedule(number.to_string(), "application/json").after(after);
        assert!(job.await.unwrap().is_stored());
    }

    async fn schedule_50_ms_apart(&self, numbers: std::ops::Range<u32>) {
        self.schedule_50_ms_apart_after(Duration::ZERO, numbers).await;
    }

    async fn schedule_50_ms_apart_after(&self, delay: Duration, numbers: std::ops::Range<u32>) {
        for number in numbers.clone() {
            let steps = number - numbers.start + 1;
            self.schedule(number, delay + Duration::from_millis(50) * steps).await;
        }
    }

    async fn ran(&mut self, numbers: std::ops::Range<u32>) -> Vec<Duration> {
        let (mut seen, mut lateness_of_all) = (Vec::new(), Vec::new());
        while seen.len() < numbers.len() {
            let ran = tokio::time::timeout(MAX_WAIT, self.ran.recv()).await;
            let Ran { number, lateness } = ran.expect("a job runs").unwrap();
            seen.push(number);
            lateness_of_all.push(lateness);
        }
        seen.sort_unstable();
        assert_eq!(seen, numbers.collect::<Vec<_>>());
        lateness_of_all
    }

    async fn ran_in_time(&mut self, numbers: std::ops::Range<u32>) {
        self.ran_in_time_despite(Duration::ZERO, numbers).await;
    }

    /// Allows an outage's length as additional lateness.
    async fn ran_in_time_despite(&mut self, outage: Duration, numbers: std::ops::Range<u32>) {
        let late = self.ran(numbers).await;
        assert!(late.iter().all(|late| *late < MAX_LATENESS + outage), "{late:?} with {outage:?}");
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.running.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn jobs_run_in_time_with_notifications_off() {
    let server = Redis::start();
    let mut fixture = Fixture::new(&server).await;
    fixture.schedule_50_ms_apart(0..20).await;
    fixture.ran_in_time(0..20).await;
    fixture.stop().await;
}

#[tokio::test]
async fn jobs_run_in_time_while_subscribed_connections_are_killed() {
    let server = server();
    let mut fixture = Fixture::new(&server).await;
    let mut killed = 0;
    for round in 0..5 {
        fixture.schedule_50_ms_apart(round * 10..round * 10 + 5).await;
        killed += server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).int();
        fixture.schedule_50_ms_apart(round * 10 + 5..round * 10 + 10).await;
        fixture.ran_in_time(round * 10..round * 10 + 10).await;
    }
    assert!(killed > 0);
    fixture.stop().await;
}

#[tokio::test]
async fn jobs_run_in_time_after_subscriptions_are_forbidden() {
    let server = server();
    let mut fixture = Fixture::new(&server).await;
    fixture.schedule_50_ms_apart(0..20).await;
    fixture.ran_in_time(0..1).await;
    // The server closes subscribed connections and refuses new subscriptions.
    assert!(server.command(&["ACL", "SETUSER", "default", "resetchannels"]).is_ok());
    fixture.ran_in_time(1..20).await;
    fixture.stop().await;
}

#[tokio::test]
async fn jobs_run_in_time_after_a_restart() {
    run_over_a_restart("Ex").await;
}

#[tokio::test]
async fn jobs_run_in_time_after_a_restart_with_notifications_off() {
    run_over_a_restart("\"\"").await;
}

async fn run_over_a_restart(letters: &str) {
    let server = Redis::options().aof().set("notify-keyspace-events", letters).start();
    let mut fixture = Fixture::new(&server).await;
    let began = Instant::now();
    // They become due while the server is down, so their events are lost. None is due earlier: if
    // the kill loses a claim's answer, its leases must expire first.
    let delay = Duration::from_secs(2);
    fixture.schedule_50_ms_apart_after(delay, 0..10).await;
    for number in 10..20 {
        fixture.schedule(number, Duration::from_secs(6)).await;
    }
    server.kill();
    tokio::time::sleep((delay + Duration::from_secs(1)).saturating_sub(began.elapsed())).await;
    server.restart();
    let outage = began.elapsed();
    fixture.ran_in_time_despite(outage, 0..20).await;
    fixture.stop().await;
}

#[tokio::test]
async fn jobs_run_in_time_among_100_000_foreign_keys_with_a_time_to_live() {
    const FOREIGN: &str = "for i = 1, 100000 do
        redis.call('SET', 'session:' .. i, '', 'EX', 36000)
    end";
    const BURST: &str = "for i = 1, 20000 do
        redis.call('SET', 'cache:' .. i, '', 'PX', 500)
    end";
    let server = server();
    let mut fixture = Fixture::new(&server).await;
    for script in [FOREIGN, BURST] {
        assert!(server.command(&["EVAL", script, "0"]).is_nil());
    }
    fixture.schedule_50_ms_apart(0..40).await;
    fixture.ran_in_time(0..40).await;
    fixture.stop().await;
}
