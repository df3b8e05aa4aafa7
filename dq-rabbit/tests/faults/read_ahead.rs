//! Payloads of jobs that have no messages.

use std::time::Duration;

use dq_core::{Clock, SystemClock};
use dq_rabbit::LadderKind;

use crate::fixture::{
    by_proxy, claim, config, done_settlements, in_an_hour, job, open, poll, queue, retry, stats,
    wait_until,
};

const JOBS: usize = 1_500;
const DUE: usize = 100;
/// All payloads together exceed the message cache.
const PAYLOAD_BYTES: usize = 20_000;

/// Each claim alone would read the whole log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_without_messages_are_read_in_one_pass() {
    let mut config = config("read-ahead");
    config.ladder = LadderKind::None;
    let producer = open(&config).await;
    let first_due = SystemClock.now();
    let payload = |index: usize| vec![index as u8; PAYLOAD_BYTES];
    // Far apart, and in another order than in the log.
    let new = |index: usize| {
        let job = job("q").payload(payload(index));
        if !index.is_multiple_of(JOBS / DUE) {
            return in_an_hour(job);
        }
        let place = (index / (JOBS / DUE) * 37) % DUE;
        job.due(first_due + Duration::from_millis(place as u64))
    };
    let jobs: Vec<_> = (0..JOBS).map(new).collect();
    for jobs in jobs.chunks(50) {
        retry(|| producer.schedule(jobs.to_vec())).await;
    }

    let (proxy, mut config) = by_proxy(&config).await;
    // A repeated claim would read the log once more.
    config.response_timeout = Duration::from_secs(60);
    let runner = open(&config).await;
    assert_eq!(stats(&*runner, "q").await.live(), JOBS as u64);
    let opened = proxy.reply_bytes();
    let _wakeups = runner.listen(&[queue("q")], "test").await.unwrap();
    wait_until("the jobs are due", async || stats(&*runner, "q").await.ready == DUE as u64).await;
    let mut done = 0;
    while done < DUE {
        let claimed = poll("a job", async || {
            let claimed = retry(|| claim(&*runner, "q", 10)).await;
            (!claimed.jobs.is_empty()).then_some(claimed)
        })
        .await;
        for leased in &claimed.jobs {
            let index = jobs.iter().position(|job| job.id == leased.job.id).unwrap();
            assert_eq!(leased.job.payload, payload(index));
        }
        done += claimed.jobs.len();
        let ended = done_settlements(&claimed);
        retry(|| runner.settle(&ended)).await;
    }
    let read = proxy.reply_bytes() - opened;
    let all = (JOBS * PAYLOAD_BYTES) as u64;
    // The pass that reads ahead, and the first claim's, which may begin before it.
    assert!(read < 3 * all, "{read} bytes were read for {DUE} jobs of a log of {all}");
}
