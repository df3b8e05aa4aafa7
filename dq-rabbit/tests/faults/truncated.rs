//! A disconnected process's generation is deleted.

use std::collections::BTreeMap;

use dq_core::{
    Backend, BrowseParams, Due, JobId, JobState, Operation, Settlement, Timestamp, Verdict,
};
use dq_rabbit::QueueKind;
use dq_servers::RabbitMq;

use crate::fixture::{
    after, by_id, claim, config_for, in_an_hour, job, keyed, open, queue, retry, start_runner,
    stats, wait_until,
};
use dq_testkit::faults::TcpProxy;

/// Stats as text; each job's state, due time and payload.
type Contents = (String, BTreeMap<JobId, (JobState, Timestamp, Vec<u8>)>);

async fn contents(backend: &dyn Backend) -> Contents {
    let mut jobs = BTreeMap::new();
    let all = retry(|| backend.stats(&[])).await;
    for counts in &all {
        for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead] {
            let mut after = None;
            loop {
                let params =
                    BrowseParams::new(&counts.queue, state).after(after).limit(500).payloads(true);
                let page = retry(|| backend.browse(params)).await;
                jobs.extend(page.jobs.iter().map(|view| {
                    let what = (view.state, view.job.due, view.job.payload.to_vec());
                    (view.job.id, what)
                }));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
    }
    (format!("{all:?}"), jobs)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnected_and_new_processes_restore_the_state_of_a_later_generation() {
    let server = RabbitMq::start();
    let mut config = config_for(&server);
    config.queues = QueueKind::Classic;
    config.log_size_mib = 16;
    let backend = open(&config).await;
    let proxy = TcpProxy::to(server.address()).await;
    let mut proxy_config = config.clone();
    proxy_config.url = dq_core::config::Secret::new(proxy.url(config.url.expose()));
    let disconnected = open(&proxy_config).await;

    let mut jobs: Vec<_> = (0..60).map(|_| in_an_hour(job("old"))).collect();
    jobs.push(in_an_hour(keyed("old", "with a key")));
    backend.schedule(jobs.clone()).await.unwrap();
    backend.schedule((0..4).map(|_| job("dead")).collect()).await.unwrap();
    let claimed = claim(&*backend, "dead", 3).await.unwrap();
    let reason = dq_core::DeadReason::new(dq_core::DeadKind::Rejected, "for the test");
    let dead = |leased: &dq_core::LeasedJob| {
        Settlement::new(leased.lease(), Verdict::Dead { reason: reason.clone(), failed: true })
    };
    backend.settle(&claimed.jobs.iter().map(dead).collect::<Vec<_>>()).await.unwrap();
    let (dead, old) = (queue("dead"), queue("old"));
    backend.operate(Operation::Pause { queue: &old }).await.unwrap();
    backend.operate(Operation::Pause { queue: &dead }).await.unwrap();
    backend.cancel(&[by_id(&jobs[0])]).await.unwrap();
    assert_eq!(contents(&*disconnected).await, contents(&*backend).await);
    // The wake-up hint is lost while disconnected.
    let mut runner = start_runner(&disconnected, "hinted").await;

    proxy.pause();
    let new = after(3_000, job("hinted"));
    backend.schedule(vec![new.clone()]).await.unwrap();
    // Three times the log's size, so that the first generation is deleted.
    for _ in 0..24 {
        let big = || in_an_hour(job("big")).payload(vec![b'x'; 512 * 1024]);
        let jobs: Vec<_> = (0..4).map(|_| big()).collect();
        retry(|| backend.schedule(jobs.clone())).await;
        let names: Vec<_> = jobs.iter().map(by_id).collect();
        retry(|| backend.cancel(&names)).await;
    }
    proxy.resume();
    runner.expect_each_once(&[new]).await;
    wait_until("the job is done", async || {
        stats(&*backend, "hinted").await.totals.unwrap().done == 1
    })
    .await;

    let before = contents(&*backend).await;
    assert_eq!(before.1.len(), 60 + 4);
    assert_eq!(contents(&*disconnected).await, before);
    let new_process = open(&config).await;
    assert_eq!(contents(&*new_process).await, before);
    let resume = Operation::Resume { queue: &dead };
    assert_eq!(new_process.operate(resume).await.unwrap().affected, 1);
    let replay = Operation::Replay {
        queue: &dead,
        jobs: &dq_testkit::fixture::dead_ids(&*backend, &dead).await[..],
        due: Due::NOW,
    };
    // A call may have replayed them although its reply was lost.
    let _ = retry(|| disconnected.operate(replay)).await;
    let mut leased = 0;
    wait_until("all are claimed", async || {
        leased += claim(&*backend, "dead", 9).await.unwrap().jobs.len();
        leased == 4
    })
    .await;
    let resent = retry(|| disconnected.schedule(vec![jobs[60].clone()])).await;
    assert!(matches!(resent[..], [dq_core::Scheduled::Created(_)]), "{resent:?}");
}
