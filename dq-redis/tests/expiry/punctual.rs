//! Jobs run in time by the runner's timer, with or without notifications.
//!
//! A sweep is a claim without any hint, which the runner makes at a fixed interval. Here the
//! interval is long, so that a job which only a sweep finds is later than these tests allow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::{Backend, DelayHandler, Dq, HandlerResult, JobContext, Outcome, QueueCode, Result};
use dq_servers::Redis;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::fixture::{MAX_WAIT, open_on, server};

/// The sweep interval.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum lateness of a job that the timer started. Far more than usual, for busy machines, but
/// less than the sweep interval, and than the half minute (at the median) that Redis takes to
/// expire a key among the keys of the last test.
const MAX_LATENESS: Duration = Duration::from_secs(20);

/// One run of a job.
struct Ran {
    number: u32,
    lateness: Duration,
}

/// A handler that reports each run.
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

/// A client and its runner.
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

    /// Schedules jobs with these numbers at once, with due times 50 ms apart.
    async fn schedule_50_ms_apart(&self, numbers: std::ops::Range<u32>) {
        self.schedule_50_ms_apart_after(Duration::ZERO, numbers).await;
    }

    async fn schedule_50_ms_apart_after(&self, delay: Duration, numbers: std::ops::Range<u32>) {
        for number in numbers.clone() {
            let steps = number - numbers.start + 1;
            self.schedule(number, delay + Duration::from_millis(50) * steps).await;
        }
    }

    /// Waits until each of these jobs has run once, and returns how late each was.
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

    /// Waits until each of these jobs has run once, in time.
    async fn ran_in_time(&mut self, numbers: std::ops::Range<u32>) {
        self.ran_in_time_despite(Duration::ZERO, numbers).await;
    }

    /// As [`ran_in_time`](Self::ran_in_time); jobs may be late by the length of an outage, too.
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
        // Their events are missed.
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

/// Restarts the server, with this value of `notify-keyspace-events`, while jobs wait.
async fn run_over_a_restart(letters: &str) {
    let server = Redis::options().aof().set("notify-keyspace-events", letters).start();
    let mut fixture = Fixture::new(&server).await;
    let began = Instant::now();
    // They become due while the server is down, so their events are lost. None is due before: of a
    // claim whose answer is killed with the server, the leases would have to end first.
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
    // All of these expire at the same time while jobs wait.
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
