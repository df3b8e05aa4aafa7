//! Jobs run in time by the runner's timer, whatever becomes of the notifications.
//!
//! The sweep is put off, so that what it finds in the place of the timer is found later than these
//! tests allow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::{Backend, DelayHandler, Dq, HandlerResult, JobContext, Outcome, QueueCode, Result};
use dq_servers::Redis;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::rig::{BOUND, open_on, server};

const SWEEP: Duration = Duration::from_secs(60);

/// Later than this is not by timer. Among the foreign keys of the test below, Redis by itself would
/// take half a minute at the median.
const LATE: Duration = Duration::from_secs(20);

struct Ran {
    number: u32,
    lateness: Duration,
}

/// Runs jobs and tells which.
struct Teller(mpsc::UnboundedSender<Ran>);

impl DelayHandler for Teller {
    type Payload = u32;

    fn code(&self) -> impl QueueCode {
        "q"
    }

    async fn handle(&self, job: JobContext, number: u32) -> HandlerResult {
        let _ = self.0.send(Ran { number, lateness: job.lateness() });
        Ok(Outcome::Done)
    }
}

struct Bed {
    dq: Dq,
    ran: mpsc::UnboundedReceiver<Ran>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<()>>,
}

impl Bed {
    async fn new(server: &Redis) -> Self {
        let backend: Arc<dyn Backend> = Arc::new(open_on(server).await);
        let dq = Dq::builder().backend(backend).connect().await.unwrap();
        let (tell, ran) = mpsc::unbounded_channel();
        let runner = dq.runner().without_linked_handlers().handler(Teller(tell)).sweep(SWEEP);
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

    /// Jobs with these numbers, one every 50 ms.
    async fn schedule_some(&self, numbers: std::ops::Range<u32>) {
        for number in numbers.clone() {
            let steps = number - numbers.start + 1;
            self.schedule(number, Duration::from_millis(50) * steps).await;
        }
    }

    /// Waits for jobs with these numbers, each once, and returns how late each was.
    async fn ran(&mut self, numbers: std::ops::Range<u32>) -> Vec<Duration> {
        let (mut seen, mut late) = (Vec::new(), Vec::new());
        while seen.len() < numbers.len() {
            let ran = tokio::time::timeout(BOUND, self.ran.recv()).await;
            let Ran { number, lateness } = ran.expect("a job runs").unwrap();
            seen.push(number);
            late.push(lateness);
        }
        seen.sort_unstable();
        assert_eq!(seen, numbers.collect::<Vec<_>>());
        late
    }

    async fn ran_in_time(&mut self, numbers: std::ops::Range<u32>) {
        self.ran_in_time_but_for(Duration::ZERO, numbers).await;
    }

    /// As [`ran_in_time`](Self::ran_in_time), where nobody could run jobs for that long.
    async fn ran_in_time_but_for(&mut self, outage: Duration, numbers: std::ops::Range<u32>) {
        let late = self.ran(numbers).await;
        assert!(late.iter().all(|late| *late < LATE + outage), "{late:?} with {outage:?}");
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.running.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn with_notifications_off() {
    let server = Redis::start();
    let mut bed = Bed::new(&server).await;
    bed.schedule_some(0..20).await;
    bed.ran_in_time(0..20).await;
    bed.stop().await;
}

#[tokio::test]
async fn with_the_listening_connections_killed_again_and_again() {
    let server = server();
    let mut bed = Bed::new(&server).await;
    let mut killed = 0;
    for round in 0..5 {
        bed.schedule_some(round * 10..round * 10 + 5).await;
        killed += server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).int();
        // Nobody hears of these.
        bed.schedule_some(round * 10 + 5..round * 10 + 10).await;
        bed.ran_in_time(round * 10..round * 10 + 10).await;
    }
    assert!(killed > 0);
    bed.stop().await;
}

#[tokio::test]
async fn with_nothing_heard_any_more_in_mid_run() {
    let server = server();
    let mut bed = Bed::new(&server).await;
    bed.schedule_some(0..20).await;
    bed.ran_in_time(0..1).await;
    // The server cuts who listens, and lets nobody listen again.
    assert!(server.command(&["ACL", "SETUSER", "default", "resetchannels"]).is_ok());
    bed.ran_in_time(1..20).await;
    bed.stop().await;
}

#[tokio::test]
async fn with_the_server_restarted_while_jobs_wait() {
    restarted("Ex").await;
}

#[tokio::test]
async fn with_the_server_restarted_and_notifications_off() {
    restarted("\"\"").await;
}

async fn restarted(letters: &str) {
    let server = Redis::options().aof().set("notify-keyspace-events", letters).start();
    let mut bed = Bed::new(&server).await;
    let began = Instant::now();
    // Due while the server is down, their alarms are never heard of.
    bed.schedule_some(0..10).await;
    for number in 10..20 {
        bed.schedule(number, Duration::from_secs(4)).await;
    }
    server.kill();
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.restart();
    let outage = began.elapsed();
    bed.ran_in_time_but_for(outage, 0..20).await;
    bed.stop().await;
}

#[tokio::test]
async fn among_100_000_foreign_keys_with_a_time_to_live() {
    const FOREIGN: &str = "for i = 1, 100000 do
        redis.call('SET', 'session:' .. i, '', 'EX', 36000)
    end";
    // These expire all at once meanwhile.
    const BURST: &str = "for i = 1, 20000 do
        redis.call('SET', 'cache:' .. i, '', 'PX', 500)
    end";
    let server = server();
    let mut bed = Bed::new(&server).await;
    for script in [FOREIGN, BURST] {
        assert!(server.command(&["EVAL", script, "0"]).is_nil());
    }
    bed.schedule_some(0..40).await;
    bed.ran_in_time(0..40).await;
    bed.stop().await;
}
