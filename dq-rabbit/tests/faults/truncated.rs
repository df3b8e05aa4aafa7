//! The broker cuts the log at its old end while somebody is away.

use std::collections::BTreeMap;

use dq_core::{
    Backend, BrowseParams, Due, JobId, JobState, Operation, Settlement, Timestamp, Verdict,
};
use dq_rabbit::QueueKind;
use dq_servers::RabbitMq;

use crate::proxy::Proxy;
use crate::fixture::{
    after, by_id, claim, config_for, job, keyed, in_an_hour, open, retry, queue, start_runner, stats, wait_until,
};

type Seen = (String, BTreeMap<JobId, (JobState, Timestamp, Vec<u8>)>);

/// All that can be seen of a store but for what passes with the time.
async fn all_of(backend: &dyn Backend) -> Seen {
    let mut jobs = BTreeMap::new();
    let all = retry(|| backend.stats(&[])).await;
    for counts in &all {
        for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead] {
            let mut after = None;
            loop {
                let params = BrowseParams { queue: &counts.queue, state, after, limit: 500 };
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
async fn who_was_away_and_who_comes_later_know_what_all_others_know() {
    let server = RabbitMq::start();
    let mut config = config_for(&server);
    config.queues = QueueKind::Classic;
    config.log_size_mib = 16;
    let backend = open(&config).await;
    let proxy = Proxy::to(server.address()).await;
    let mut away_config = config.clone();
    away_config.url = dq_core::config::Secret::new(proxy.url(config.url.expose()));
    let away = open(&away_config).await;

    let mut jobs: Vec<_> = (0..60).map(|_| in_an_hour(job("old"))).collect();
    jobs.push(in_an_hour(keyed("old", "with a key")));
    backend.schedule(jobs.clone()).await.unwrap();
    backend.schedule((0..4).map(|_| job("dead")).collect()).await.unwrap();
    let claimed = claim(&*backend, "dead", 3).await.unwrap();
    let reason = dq_core::DeadReason::new(dq_core::DeadKind::Rejected, "for the test");
    let bury = |leased: &dq_core::LeasedJob| Settlement {
        lease: leased.lease(),
        verdict: Verdict::Dead { reason: reason.clone(), failed: true },
    };
    backend.settle(&claimed.jobs.iter().map(bury).collect::<Vec<_>>()).await.unwrap();
    let (dead, old) = (queue("dead"), queue("old"));
    backend.operate(Operation::Pause { queue: &old }).await.unwrap();
    backend.operate(Operation::Pause { queue: &dead }).await.unwrap();
    backend.cancel(&[by_id(&jobs[0])]).await.unwrap();
    assert_eq!(all_of(&*away).await, all_of(&*backend).await);
    // One that waits for a hint, and gets none while it is away.
    let mut runner = start_runner(&away, "hinted").await;

    proxy.hold();
    let new = after(3_000, job("hinted"));
    backend.schedule(vec![new.clone()]).await.unwrap();
    // Three times what the broker keeps.
    for _ in 0..24 {
        let big =
            || dq_core::NewJob { payload: vec![b'x'; 512 * 1024].into(), ..later(job("big")) };
        let jobs: Vec<_> = (0..4).map(|_| big()).collect();
        retry(|| backend.schedule(jobs.clone())).await;
        let names: Vec<_> = jobs.iter().map(by_id).collect();
        retry(|| backend.cancel(&names)).await;
    }
    proxy.let_go();
    runner.expect_each_once(&[new]).await;
    wait_until("that is over", async || stats(&*backend, "hinted").await.totals.unwrap().done == 1)
        .await;

    let before = all_of(&*backend).await;
    assert_eq!(before.1.len(), 60 + 4);
    assert_eq!(all_of(&*away).await, before);
    let newcomer = open(&config).await;
    assert_eq!(all_of(&*newcomer).await, before);
    // All three go on from there, each for the others.
    let resume = Operation::Resume { queue: &dead };
    assert_eq!(newcomer.operate(resume).await.unwrap().affected, 1);
    let replay = Operation::Replay { queue: &dead, jobs: None, due: Due::NOW };
    assert_eq!(retry(|| away.operate(replay)).await.affected, 3);
    let mut taken = 0;
    wait_until("all are taken", async || {
        taken += claim(&*backend, "dead", 9).await.unwrap().jobs.len();
        taken == 4
    })
    .await;
    let resent = retry(|| away.schedule(vec![jobs[60].clone()])).await;
    assert!(matches!(resent[..], [dq_core::Scheduled::Kept(_)]), "{resent:?}");
}
