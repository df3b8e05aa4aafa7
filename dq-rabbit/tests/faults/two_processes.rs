//! Two processes on one prefix, one of which is cut off now and then.

use std::collections::HashSet;
use std::time::Duration;

use dq_core::{Cancelled, ErrorKind, Renewal, Renewed, Settled};
use dq_servers::shared_rabbitmq;

use crate::proxy::Proxy;
use crate::fixture::{
    PATIENCE, after, by_id, claim, claim_for, claim_until_some, config, connect, done_settlements, job, in_an_hour, open,
    retry, start_runner, stats, assert_helpful, wait_until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_with_one_of_them_and_what_one_says_binds_both() {
    let config = config("two");
    let (one, other) = (open(&config).await, open(&config).await);
    let jobs: Vec<_> = (0..200).map(|_| job("q")).collect();
    one.schedule(jobs).await.unwrap();
    let mut leased = HashSet::new();
    while leased.len() < 200 {
        let claims = tokio::join!(claim(&*one, "q", 7), claim(&*other, "q", 7));
        for claimed in [claims.0.unwrap(), claims.1.unwrap()] {
            for job in &claimed.jobs {
                assert!(leased.insert(job.job.id), "leased twice");
            }
        }
    }
    // The moment it is answered, it holds for the other.
    for (here, there) in [(&one, &other), (&other, &one)] {
        for _ in 0..20 {
            let new = job("cancelled");
            here.schedule(vec![new.clone()]).await.unwrap();
            let answer = here.cancel(&[by_id(&new)]).await.unwrap();
            let claimed = claim(&**there, "cancelled", 1).await.unwrap();
            assert_eq!((answer, claimed.jobs.len()), (vec![Cancelled::Cancelled], 0));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_cut_off_starts_nothing_that_was_taken_back_and_loses_what_it_had() {
    let config = config("parted");
    let one = open(&config).await;
    let proxy = Proxy::to(shared_rabbitmq().address()).await;
    let mut by_proxy = config.clone();
    by_proxy.url = dq_core::config::Secret::new(proxy.url(config.url.expose()));
    by_proxy.response_timeout = Duration::from_secs(6);
    let other = retry(|| connect(&by_proxy)).await;

    let held = job("held");
    one.schedule(vec![held.clone()]).await.unwrap();
    let lease = Duration::from_secs(4);
    let first = claim_for(&*other, "held", 1, lease).await.unwrap();
    assert_eq!(first.jobs.len(), 1);
    // The other has the messages of these at hand.
    let mut runner = start_runner(&other, "q").await;
    let doomed: Vec<_> = (0..20).map(|_| after(2_500, job("q"))).collect();
    let kept: Vec<_> = (0..20).map(|_| after(2_500, job("q"))).collect();
    one.schedule(doomed.iter().chain(&kept).cloned().collect()).await.unwrap();
    wait_until("they have arrived", async || stats(&*other, "q").await.scheduled == 40).await;

    proxy.hold();
    let names: Vec<_> = doomed.iter().map(by_id).collect();
    assert_eq!(one.cancel(&names).await.unwrap(), [Cancelled::Cancelled; 20]);
    let renewal = Renewal { lease: first.jobs[0].lease(), lease_for: lease };
    let error = other.renew(std::slice::from_ref(&renewal)).await.unwrap_err();
    assert_helpful(&error, &[]);
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    // Its lease lapses, and the job is run elsewhere.
    let second = claim_until_some(&*one, "held").await;
    assert_eq!(second.jobs[0].job.losses, 1);
    assert!(second.jobs[0].token > first.jobs[0].token);
    wait_until("the jobs are due", async || stats(&*one, "q").await.ready == 20).await;
    assert!(runner.started.try_recv().is_err(), "nothing starts without the log");

    proxy.let_go();
    let ended = done_settlements(&first);
    assert_eq!(retry(|| other.settle(&ended)).await, [Settled::Stale]);
    assert_eq!(retry(|| other.renew(std::slice::from_ref(&renewal))).await, [Renewed::Lost]);
    assert_eq!(one.settle(&done_settlements(&second)).await.unwrap(), [Settled::Accepted]);
    runner.expect_each_once(&kept).await;
    wait_until("all are done", async || stats(&*one, "q").await.totals.unwrap().done == 20).await;
    assert!(runner.started.try_recv().is_err(), "a job that was taken back has run");
}

/// A process whose writing does not get through while others write all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_write_is_told_though_others_can() {
    let config = config("silent");
    let one = open(&config).await;
    let proxy = Proxy::to(shared_rabbitmq().address()).await;
    let mut by_proxy = config.clone();
    by_proxy.url = dq_core::config::Secret::new(proxy.url(config.url.expose()));
    by_proxy.response_timeout = Duration::from_secs(3);
    let other = retry(|| connect(&by_proxy)).await;
    let busy = tokio::spawn(async move {
        loop {
            one.schedule(vec![in_an_hour(job("busy"))]).await.ok();
            // Slowly: who acknowledges nothing is not sent much more.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    wait_until("it reads along", async || stats(&*other, "busy").await.scheduled > 3).await;
    proxy.hold_requests();
    let call = tokio::time::timeout(PATIENCE, other.schedule(vec![in_an_hour(job("q"))]));
    let error = call.await.expect("it is answered").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    proxy.let_go();
    busy.abort();
}
