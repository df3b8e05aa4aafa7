//! Processes whose clocks differ.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{Clock, Settled, SystemClock, Timestamp, async_trait};
use futures_util::future::BoxFuture;

use crate::fixture::{
    after, claim, claim_until_some, config, connect_with_clock, done_settlements, job, open,
    start_runner, stats,
};

/// The system clock, ahead by this many milliseconds; behind if negative.
#[derive(Debug)]
struct SkewedClock(i64);

const HOUR: i64 = 3_600_000;

impl SkewedClock {
    fn shift(time: Timestamp, by: i64) -> Timestamp {
        Timestamp::from_millis(time.as_millis() + by)
    }
}

#[async_trait]
impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        Self::shift(SystemClock.now(), self.0)
    }

    fn elapsed(&self) -> Duration {
        SystemClock.elapsed()
    }

    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()> {
        SystemClock.sleep_until(Self::shift(until, -self.0))
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        SystemClock.sleep(delay)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_claim_by_their_own_clock_and_lose_no_job() {
    let config = config("clocks");
    let exact = open(&config).await;
    let fast = connect_with_clock(&config, Arc::new(SkewedClock(HOUR))).await.unwrap();
    let slow = connect_with_clock(&config, Arc::new(SkewedClock(-HOUR))).await.unwrap();

    // Due in half an hour, which is in the past for the fast clock.
    let jobs: Vec<_> = (0..5).map(|_| after(HOUR as u64 / 2, job("q"))).collect();
    exact.schedule(jobs.clone()).await.unwrap();
    for backend in [&exact, &slow] {
        let claimed = claim(&**backend, "q", 9).await.unwrap();
        assert!(claimed.jobs.is_empty(), "not due by this clock");
        assert!(claimed.next_due.unwrap() > claimed.now);
    }
    let claimed = claim(&*fast, "q", 2).await.unwrap();
    assert_eq!(claimed.jobs.len(), 2);
    assert!(claimed.jobs.iter().all(|leased| leased.job.due <= claimed.now));
    // For clocks that are behind, the lease lasts an hour longer; no job is leased twice.
    assert!(claim(&*exact, "q", 9).await.unwrap().jobs.is_empty());
    assert_eq!(fast.settle(&done_settlements(&claimed)).await.unwrap(), [Settled::Accepted; 2]);

    // A lease of the slow process has lapsed for the fast one: the job runs again, one settlement
    // counts.
    let now = job("now");
    slow.schedule(vec![now.clone()]).await.unwrap();
    let by_slow = claim(&*slow, "now", 1).await.unwrap();
    assert_eq!(by_slow.jobs.len(), 1);
    let by_fast = claim_until_some(&*fast, "now").await;
    assert_eq!(slow.settle(&done_settlements(&by_slow)).await.unwrap(), [Settled::Stale]);
    assert_eq!(fast.settle(&done_settlements(&by_fast)).await.unwrap(), [Settled::Accepted]);
    assert_eq!(stats(&*exact, "now").await.totals.unwrap().done, 1);
    assert_eq!(stats(&*exact, "q").await.scheduled, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_with_a_skewed_clock_makes_no_job_with_an_absolute_due_time_early() {
    let config = config("producer");
    let exact = open(&config).await;
    let slow = connect_with_clock(&config, Arc::new(SkewedClock(-HOUR))).await.unwrap();
    let mut runner = start_runner(&exact, "q").await;
    // The due times are absolute. The slow producer takes them to be an hour further off, so its
    // messages stay in the ladder too long, and the runner fetches the payloads from the log.
    let jobs: Vec<_> = (0..20).map(|n| after(1_500 + 20 * n, job("q"))).collect();
    slow.schedule(jobs.clone()).await.unwrap();
    runner.expect_each_once(&jobs).await;
    let fast = connect_with_clock(&config, Arc::new(SkewedClock(HOUR))).await.unwrap();
    // The fast producer takes the due times to have passed, so its messages skip the ladder.
    let jobs: Vec<_> = (0..20).map(|n| after(1_500 + 20 * n, job("q"))).collect();
    fast.schedule(jobs.clone()).await.unwrap();
    runner.expect_each_once(&jobs).await;
}
