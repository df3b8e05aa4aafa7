//! Processes that do not agree on what time it is.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{Clock, Settled, SystemClock, Timestamp, async_trait};
use futures_util::future::BoxFuture;

use crate::fixture::{after, claim, claim_until_some, config, connect_with_clock, done_settlements, job, open, start_runner, stats};

/// The machine's clock, wrong by so many milliseconds.
#[derive(Debug)]
struct Wrong(i64);

const HOUR: i64 = 3_600_000;

impl Wrong {
    fn shift(time: Timestamp, by: i64) -> Timestamp {
        Timestamp::from_millis(time.as_millis() + by)
    }
}

#[async_trait]
impl Clock for Wrong {
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
async fn each_goes_by_its_own_clock_and_none_loses_a_job() {
    let config = config("clocks");
    let right = open(&config).await;
    let fast = connect_with_clock(&config, Arc::new(Wrong(HOUR))).await.unwrap();
    let slow = connect_with_clock(&config, Arc::new(Wrong(-HOUR))).await.unwrap();

    // Due in half an hour, which for one of them is long past.
    let jobs: Vec<_> = (0..5).map(|_| after(HOUR as u64 / 2, job("q"))).collect();
    right.schedule(jobs.clone()).await.unwrap();
    for backend in [&right, &slow] {
        let claimed = claim(&**backend, "q", 9).await.unwrap();
        assert!(claimed.jobs.is_empty(), "not by this one's clock");
        assert!(claimed.next_due.unwrap() > claimed.now);
    }
    let claimed = claim(&*fast, "q", 2).await.unwrap();
    assert_eq!(claimed.jobs.len(), 2);
    assert!(claimed.jobs.iter().all(|leased| leased.job.due <= claimed.now));
    // For those that are behind, the lease lasts an hour longer; nobody has the job twice.
    assert!(claim(&*right, "q", 9).await.unwrap().jobs.is_empty());
    assert_eq!(fast.settle(&done_settlements(&claimed)).await.unwrap(), [Settled::Accepted; 2]);

    // What the slow one leases has lapsed for the fast one: the job runs again, and one end counts.
    let now = job("now");
    slow.schedule(vec![now.clone()]).await.unwrap();
    let by_slow = claim(&*slow, "now", 1).await.unwrap();
    assert_eq!(by_slow.jobs.len(), 1);
    let by_fast = claim_until_some(&*fast, "now").await;
    assert_eq!(slow.settle(&done_settlements(&by_slow)).await.unwrap(), [Settled::Stale]);
    assert_eq!(fast.settle(&done_settlements(&by_fast)).await.unwrap(), [Settled::Accepted]);
    assert_eq!(stats(&*right, "now").await.totals.unwrap().done, 1);
    assert_eq!(stats(&*right, "q").await.scheduled, 3);
}

/// A clock that is set on while jobs wait: those by the right clock run when they are due by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_with_another_clock_makes_no_job_early() {
    let config = config("producer");
    let right = open(&config).await;
    let slow = connect_with_clock(&config, Arc::new(Wrong(-HOUR))).await.unwrap();
    let mut runner = start_runner(&right, "q").await;
    // The ladder of the slow one takes an hour longer than it should.
    let jobs: Vec<_> = (0..20).map(|n| after(1_500 + 20 * n, job("q"))).collect();
    slow.schedule(jobs.clone()).await.unwrap();
    runner.expect_each_once(&jobs).await;
    let fast = connect_with_clock(&config, Arc::new(Wrong(HOUR))).await.unwrap();
    // And that of the fast one none at all.
    let jobs: Vec<_> = (0..20).map(|n| after(1_500 + 20 * n, job("q"))).collect();
    fast.schedule(jobs.clone()).await.unwrap();
    runner.expect_each_once(&jobs).await;
}
