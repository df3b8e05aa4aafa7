//! Two processes on one prefix, one of which loses its connection.

use std::time::{Duration, Instant};

use dq_core::{Cancelled, ErrorKind, Renewal, Renewed, Settled};
use dq_servers::shared_rabbitmq;

use crate::fixture::{
    LONG_LEASE, TIMEOUT, after, assert_helpful, by_id, claim_for, config, connect,
    done_settlements, in_an_hour, job, open, poll, retry, start_runner, stats, wait_until,
};
use dq_testkit::faults::TcpProxy;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disconnected_process_starts_no_cancelled_job_and_loses_its_leases() {
    for delay in [2_500, 10_000, 40_000] {
        if disconnect_and_cancel(delay).await.is_ok() {
            return;
        }
    }
    panic!("the machine is too slow for this test");
}

struct TooSlow;

/// Disconnects a process, and cancels some jobs, which are due in `delay` milliseconds.
async fn disconnect_and_cancel(delay: u64) -> Result<(), TooSlow> {
    let config = config(&format!("parted-{delay}"));
    let connected = open(&config).await;
    let proxy = TcpProxy::to(shared_rabbitmq().address()).await;
    let mut by_proxy = config.clone();
    by_proxy.url = dq_core::config::Secret::new(proxy.url(config.url.expose()));
    by_proxy.response_timeout = Duration::from_secs(6);
    let disconnected = retry(|| connect(&by_proxy)).await;

    let held = job("held");
    connected.schedule(vec![held.clone()]).await.unwrap();
    let lease = Duration::from_secs(4);
    let first = poll("the job is claimed", async || {
        let claimed = retry(|| claim_for(&*disconnected, "held", 1, lease)).await;
        (!claimed.jobs.is_empty()).then_some(claimed)
    })
    .await;
    // This runner gets their messages.
    let mut runner = start_runner(&disconnected, "q").await;
    let began = Instant::now();
    let is_late = || began.elapsed() >= Duration::from_millis(delay);
    let cancelled: Vec<_> = (0..20).map(|_| after(delay, job("q"))).collect();
    let kept: Vec<_> = (0..20).map(|_| after(delay, job("q"))).collect();
    connected.schedule(cancelled.iter().chain(&kept).cloned().collect()).await.unwrap();
    wait_until("they are scheduled", async || {
        stats(&*disconnected, "q").await.scheduled == 40 || is_late()
    })
    .await;

    proxy.pause();
    let names: Vec<_> = cancelled.iter().map(by_id).collect();
    let results = connected.cancel(&names).await.unwrap();
    if is_late() {
        return Err(TooSlow);
    }
    assert_eq!(results, [Cancelled::Cancelled; 20]);
    let renewal = Renewal::new(first.jobs[0].lease(), lease);
    let error = disconnected.renew(std::slice::from_ref(&renewal)).await.unwrap_err();
    assert_helpful(&error, &[]);
    // After other calls without a reply, the connection may be given up before this one is sent.
    let kinds = [ErrorKind::OutcomeUnknown, ErrorKind::Unavailable];
    assert!(kinds.contains(&error.kind()), "{error}");
    let second = poll("the lease expires", async || {
        let claimed = retry(|| claim_for(&*connected, "held", 1, LONG_LEASE)).await;
        (!claimed.jobs.is_empty()).then_some(claimed)
    })
    .await;
    assert_eq!(second.jobs[0].job.losses, first.jobs[0].job.losses + 1);
    assert!(second.jobs[0].token > first.jobs[0].token);
    wait_until("the jobs are due", async || stats(&*connected, "q").await.ready == 20).await;
    assert_eq!(runner.unexpected_starts(), [], "no job starts without the log");

    proxy.resume();
    let ended = done_settlements(&first);
    assert_eq!(retry(|| disconnected.settle(&ended)).await, [Settled::LostLease]);
    assert_eq!(
        retry(|| disconnected.renew(std::slice::from_ref(&renewal))).await,
        [Renewed::LostLease]
    );
    assert_eq!(connected.settle(&done_settlements(&second)).await.unwrap(), [Settled::Accepted]);
    runner.expect_each_once(&kept).await;
    wait_until("all are done", async || stats(&*connected, "q").await.totals.unwrap().done == 20)
        .await;
    assert_eq!(runner.unexpected_starts(), [], "a cancelled job has run");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_cannot_write_gets_errors_while_others_write() {
    let config = config("silent");
    let writer = open(&config).await;
    let proxy = TcpProxy::to(shared_rabbitmq().address()).await;
    let mut by_proxy = config.clone();
    by_proxy.url = dq_core::config::Secret::new(proxy.url(config.url.expose()));
    by_proxy.response_timeout = Duration::from_secs(3);
    let read_only = retry(|| connect(&by_proxy)).await;
    let busy = tokio::spawn(async move {
        loop {
            writer.schedule(vec![in_an_hour(job("busy"))]).await.ok();
            // Slowly: the broker sends little to a consumer that does not acknowledge.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    wait_until("the read-only process reads the log", async || {
        stats(&*read_only, "busy").await.scheduled > 3
    })
    .await;
    proxy.pause_requests();
    let call = tokio::time::timeout(TIMEOUT, read_only.schedule(vec![in_an_hour(job("q"))]));
    let error = call.await.expect("the call returns").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    proxy.resume();
    busy.abort();
}
