//! All processes have the same history, with the limits that were set last.

use dq_core::{Backend, BrowseParams, Cancelled, JobState};

use crate::fixture::{by_id, config, in_an_hour, job, open_with_history, queue, retry};

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
async fn the_last_limits_hold_for_all() {
    let config = config("history");
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
}
