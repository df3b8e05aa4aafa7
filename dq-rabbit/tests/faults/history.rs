//! All processes have the same history, with the limits that were set last.

use std::time::Duration;

use dq_core::{Backend, BrowseParams, Cancelled, JobState};

use crate::fixture::{
    by_id, config, delete_queues, in_an_hour, job, open_with_history, queue, retry, stats,
    wait_until,
};

async fn cancel_jobs(backend: &dyn Backend, count: usize) {
    for _ in 0..count {
        let new = in_an_hour(job("q"));
        retry(|| backend.schedule(vec![new.clone()])).await;
        assert_eq!(backend.cancel(&[by_id(&new)]).await.unwrap(), [Cancelled::Cancelled]);
    }
}

async fn remembered(backend: &dyn Backend) -> usize {
    let name = queue("q");
    let ended = BrowseParams::new(&name, JobState::Ended);
    retry(|| backend.browse(ended)).await.jobs.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_limits_hold_for_all_and_a_new_log_gets_those_of_who_notices_it() {
    let mut config = config("history");
    // A call gets no reply if its entry is deleted.
    config.response_timeout = Duration::from_secs(10);
    let first = open_with_history(&config, 2).await;
    cancel_jobs(&*first, 3).await;
    assert_eq!(remembered(&*first).await, 2);

    for limit in [1, 0] {
        let other = open_with_history(&config, limit).await;
        cancel_jobs(&*first, 3).await;
        for process in [&first, &other] {
            assert_eq!(remembered(&**process).await, limit as usize);
        }
        other.close().await.unwrap();
    }

    // A new log gets the limits of the process that notices it.
    assert_eq!(stats(&*first, "q").await.totals.unwrap().cancelled, 9);
    delete_queues(&config, &["dq.v1.log.0"]).await;
    wait_until("the process has noticed", async || {
        let counts = first.stats(&[queue("q")]).await;
        counts.is_ok_and(|counts| counts[0].totals.unwrap().cancelled == 0)
    })
    .await;
    wait_until("jobs that end are remembered", async || {
        cancel_jobs(&*first, 1).await;
        remembered(&*first).await > 0
    })
    .await;
    cancel_jobs(&*first, 3).await;
    assert_eq!(remembered(&*first).await, 2);
}
