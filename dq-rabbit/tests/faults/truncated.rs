//! The log is a series of streams, its *generations*; old ones are deleted. A process that was
//! disconnected meanwhile restores the state from a later generation's snapshot.

use std::collections::BTreeMap;

use dq_core::{BrowseParams, JobState, Scheduled};

use crate::fixture::{
    after, by_id, by_proxy, config, in_an_hour, job, open, queue, queue_exists, retry,
    start_runner, stats, wait_until, wait_until_done,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconnected_process_restores_the_state_of_a_later_generation() {
    let mut config = config("truncated");
    config.log_size_mib = 16;
    let backend = open(&config).await;
    let (proxy, disconnected_config) = by_proxy(&config).await;
    let disconnected = open(&disconnected_config).await;
    let kept: Vec<_> = (0..60).map(|_| in_an_hour(job("old"))).collect();
    backend.schedule(kept.clone()).await.unwrap();
    assert_eq!(stats(&*disconnected, "old").await.scheduled, 60);
    let mut runner = start_runner(&disconnected, "hinted").await;

    // It misses a wake-up hint, a cancellation, and its generation's end.
    proxy.pause();
    let new = after(3_000, job("hinted"));
    backend.schedule(vec![new.clone()]).await.unwrap();
    backend.cancel(&[by_id(&kept[0])]).await.unwrap();
    // Three times the log's size, so that the first generation is deleted.
    for _ in 0..24 {
        let big = || in_an_hour(job("big")).payload(vec![b'x'; 512 * 1024]);
        let jobs: Vec<_> = (0..4).map(|_| big()).collect();
        retry(|| backend.schedule(jobs.clone())).await;
        let names: Vec<_> = jobs.iter().map(by_id).collect();
        retry(|| backend.cancel(&names)).await;
    }
    wait_until("the first generation is deleted", async || {
        !queue_exists(&config, "dq.v1.log.0").await
    })
    .await;

    // Reconnected, it runs the new job and has the old ones.
    proxy.resume();
    runner.expect_each_once(&[new]).await;
    wait_until_done(&*backend, "hinted", 1).await;
    let name = queue("old");
    let params = BrowseParams::new(&name, JobState::Scheduled).limit(100).payloads(true);
    let page = retry(|| disconnected.browse(params)).await;
    let found = page.jobs.into_iter().map(|view| (view.job.id, view.job.payload));
    let expected = kept[1..].iter().map(|job| (job.id, job.payload.clone()));
    assert_eq!(found.collect::<BTreeMap<_, _>>(), expected.collect());
    // `Created`, because the job is still live: a repeated call gets the first call's answer.
    let resent = retry(|| disconnected.schedule(vec![kept[1].clone()])).await;
    assert!(matches!(resent[..], [Scheduled::Created(_)]), "{resent:?}");
}
