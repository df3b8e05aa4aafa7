//! Calls for many jobs run in steps, and let other callers in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dq_core::{Dq, DurationExt, Filter, QueueHandle, VirtualClock};

use crate::client::QUEUE;

const JOBS: u64 = 10_000;

const STEP: u64 = 1_000;

/// Counts waiting jobs in a second task during a call. Uses one thread, so that turns do not depend
/// on speed.
async fn counts_during(queue: &QueueHandle, call: impl Future<Output = ()>) -> Vec<u64> {
    let done = Arc::new(AtomicBool::new(false));
    let (observed, is_done) = (queue.clone(), done.clone());
    let observer = tokio::spawn(async move {
        let mut counts = Vec::new();
        while !is_done.load(Ordering::SeqCst) {
            counts.push(observed.stats().await.unwrap().stored());
            tokio::task::yield_now().await;
        }
        counts
    });
    // Takes the first count before the call.
    tokio::task::yield_now().await;
    call.await;
    done.store(true, Ordering::SeqCst);
    observer.await.unwrap()
}

fn assert_small_steps(counts: &[u64], what: &str) {
    let largest = counts.windows(2).map(|pair| pair[0].abs_diff(pair[1])).max();
    assert!(largest <= Some(STEP), "{what}: {largest:?} jobs in one step");
    let all = counts.first().zip(counts.last()).map(|(first, last)| first.abs_diff(*last));
    assert!(all >= Some(JOBS - STEP), "{what}: only {all:?} jobs were seen to change");
}

async fn fill(dq: &Dq, queue: &QueueHandle) {
    let jobs = (0..JOBS).map(|_| queue.schedule("payload", "text/plain").after(1.hours()));
    assert_eq!(dq.schedule_many(jobs).await.unwrap().len() as u64, JOBS);
}

async fn memory() -> (Dq, QueueHandle) {
    let clock = Arc::new(VirtualClock::default());
    let dq = Dq::builder().url("memory:").clock(clock).connect().await.unwrap();
    let queue = dq.queue(QUEUE).unwrap();
    (dq, queue)
}

#[tokio::test]
async fn a_large_batch_and_a_purge_let_other_callers_in_between_two_steps() {
    let (dq, queue) = memory().await;
    assert_small_steps(&counts_during(&queue, fill(&dq, &queue)).await, "schedule");
    let purge = async { assert_eq!(queue.purge().await.unwrap(), JOBS) };
    assert_small_steps(&counts_during(&queue, purge).await, "purge");
}

#[tokio::test]
async fn a_cancel_by_filter_lets_other_callers_in_between_two_steps() {
    let (dq, queue) = memory().await;
    fill(&dq, &queue).await;
    let cancel = async { assert_eq!(queue.cancel_where(Filter::new()).await.unwrap(), JOBS) };
    assert_small_steps(&counts_during(&queue, cancel).await, "cancel");
}
