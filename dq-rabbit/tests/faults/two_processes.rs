//! Two processes on one prefix, one of which loses its connection.

use std::time::{Duration, Instant};

use dq_core::{Cancelled, ErrorKind, Renewal, Renewed, Settled};

use crate::fixture::{
    LONG_LEASE, after, assert_helpful, by_id, by_proxy, claim_until_some, config, connect,
    done_settlements, job, open, retry, start_runner, stats, wait_until, wait_until_done,
};

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
    let (proxy, mut disconnected_config) = by_proxy(&config).await;
    disconnected_config.response_timeout = Duration::from_secs(6);
    let disconnected = retry(|| connect(&disconnected_config)).await;

    let held = job("held");
    connected.schedule(vec![held.clone()]).await.unwrap();
    let lease = Duration::from_secs(4);
    let first = claim_until_some(&*disconnected, "held", lease).await;
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
    let second = claim_until_some(&*connected, "held", LONG_LEASE).await;
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
    wait_until_done(&*connected, "q", 20).await;
    assert_eq!(runner.unexpected_starts(), [], "a cancelled job has run");
    Ok(())
}
