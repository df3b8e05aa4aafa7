//! A disconnected process's generation is deleted.

use dq_core::{BrowseParams, JobId, JobState, Scheduled};
use dq_rabbit::QueueKind;
use dq_servers::RabbitMq;
use dq_testkit::faults::TcpProxy;

use crate::fixture::{
    after, by_id, config_for, in_an_hour, job, open, queue, queue_exists, retry, start_runner,
    stats, wait_until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconnected_process_restores_the_state_of_a_later_generation() {
    let server = RabbitMq::start();
    let mut config = config_for(&server);
    config.queues = QueueKind::Classic;
    config.log_size_mib = 16;
    let backend = open(&config).await;
    let proxy = TcpProxy::to(server.address()).await;
    let mut proxy_config = config.clone();
    proxy_config.url = dq_core::config::Secret::new(proxy.url(config.url.expose()));
    let disconnected = open(&proxy_config).await;

    let kept: Vec<_> = (0..60).map(|_| in_an_hour(job("old"))).collect();
    backend.schedule(kept.clone()).await.unwrap();
    assert_eq!(stats(&*disconnected, "old").await.scheduled, 60);
    // The wake-up hint is lost while disconnected.
    let mut runner = start_runner(&disconnected, "hinted").await;

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
    proxy.resume();
    runner.expect_each_once(&[new]).await;
    wait_until("the job is done", async || {
        stats(&*backend, "hinted").await.totals.unwrap().done == 1
    })
    .await;
    let name = queue("old");
    let params = BrowseParams::new(&name, JobState::Scheduled).limit(100).payloads(true);
    let page = retry(|| disconnected.browse(params)).await;
    let mut found: Vec<(JobId, _)> =
        page.jobs.into_iter().map(|view| (view.job.id, view.job.payload)).collect();
    let mut expected: Vec<_> = kept[1..].iter().map(|job| (job.id, job.payload.clone())).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    let resent = retry(|| disconnected.schedule(vec![kept[1].clone()])).await;
    assert!(matches!(resent[..], [Scheduled::Created(_)]), "{resent:?}");
}
