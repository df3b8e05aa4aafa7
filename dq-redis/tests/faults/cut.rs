//! Connections that break at any byte, and scripts that the server loses.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dq_core::{Cancelled, ErrorKind, FencingToken, Lease, Scheduled, Settled, Settlement, Verdict};
use dq_servers::{Redis, RedisCluster};

use crate::faults::fixture::{
    TIMEOUT, TcpProxy, assert_error, by_id, claim, claim_for, done_settlements, in_an_hour, job,
    open, open_through, queue, retry, stats,
};

#[tokio::test]
async fn a_request_cut_at_any_byte_stores_its_job_once() {
    let redis = Redis::start();
    let proxy = TcpProxy::to(redis.address()).await;
    let backend = open_through(&proxy).await;
    let stored = in_an_hour(job("q"));
    let mut jobs = 1;
    for bytes in [0, 1, 20, 100, 200, 300] {
        // A new connection's first call also registers the queue.
        backend.schedule(vec![stored.clone()]).await.unwrap();
        let new = in_an_hour(job("q"));
        proxy.cut_request_after(bytes);
        let answer = backend.schedule(vec![new.clone()]).await;
        let error = assert_error(answer, ErrorKind::OutcomeUnknown, &["same job ids"]);
        assert!(error.is_retryable());
        let again = backend.schedule(vec![new.clone()]).await.unwrap();
        assert!(matches!(again[..], [Scheduled::Created(_)]), "{again:?} after {bytes} bytes");
        jobs += 1;
        assert_eq!(stats(&*backend, "q").await.scheduled, jobs);
    }
}

#[tokio::test]
async fn a_call_whose_reply_was_cut_reports_the_true_outcome_when_repeated() {
    let redis = Redis::start();
    let proxy = TcpProxy::to(redis.address()).await;
    let backend = open_through(&proxy).await;
    let stored = in_an_hour(job("q"));
    // The server has a script from its first call on.
    backend.cancel(&[by_id(&job("q"))]).await.unwrap();
    for bytes in [0, 1, 5, 10] {
        backend.schedule(vec![stored.clone()]).await.unwrap();
        let new = in_an_hour(job("q"));
        proxy.cut_reply_after(bytes);
        assert_error(backend.schedule(vec![new.clone()]).await, ErrorKind::OutcomeUnknown, &[]);
        let again = backend.schedule(vec![new.clone()]).await.unwrap();
        let [Scheduled::Created(receipt)] = again[..] else { panic!("{again:?}") };
        assert_eq!(receipt.id, new.id, "it was stored by the first call");

        let target = [by_id(&new)];
        proxy.cut_reply_after(bytes.min(2));
        assert_error(backend.cancel(&target).await, ErrorKind::OutcomeUnknown, &[]);
        assert_eq!(backend.cancel(&target).await.unwrap(), [Cancelled::NotFound]);
    }
    assert_eq!(stats(&*backend, "q").await.scheduled, 1);
}

#[tokio::test]
async fn a_call_to_a_cluster_whose_reply_was_cut_is_not_repeated() {
    let cluster = RedisCluster::start(1);
    let node = &cluster.nodes()[0];
    let proxy = TcpProxy::to(node.address()).await;
    // The node redirects clients to the proxy.
    let port = proxy.port().to_string();
    assert!(node.command(&["CONFIG", "SET", "cluster-announce-port", &port]).is_ok());
    let backend = open(&format!("redis+cluster://127.0.0.1:{port}?response_timeout=20s")).await;
    let new = in_an_hour(job("q"));
    retry(|| backend.schedule(vec![new.clone()])).await;
    retry(|| async { backend.cancel(&[by_id(&job("q"))]).await }).await;
    proxy.cut_reply_after(0);
    // A repeated call would get `NotFound` for the job it has just cancelled.
    assert_error(backend.cancel(&[by_id(&new)]).await, ErrorKind::OutcomeUnknown, &[]);
    let totals = retry(|| backend.stats(&[])).await[0].totals;
    assert_eq!(totals.unwrap().cancelled, 1);
}

#[tokio::test]
async fn leases_of_a_lost_reply_expire_and_a_settlement_counts_once() {
    let redis = Redis::start();
    let proxy = TcpProxy::to(redis.address()).await;
    let backend = open_through(&proxy).await;
    backend.schedule((0..3).map(|_| job("q")).collect()).await.unwrap();
    let lease = Duration::from_secs(3_600);
    let none = claim_for(&*backend, &["q"], 0, lease).await.unwrap();
    assert!(none.jobs.is_empty());
    backend.settle(&settlement_of_no_lease()).await.unwrap();
    proxy.cut_reply_after(30);
    let lost = claim_for(&*backend, &["q"], 3, lease).await;
    assert_error(lost, ErrorKind::Unavailable, &[]);
    assert_eq!(stats(&*backend, "q").await.running, 3, "leased, although the client does not know");
    let leases = "{dq}:lease:q";
    // ZUNIONSTORE with weight 0 sets all lease expiry times to 0.
    let ended = redis.command(&["ZUNIONSTORE", leases, "1", leases, "WEIGHTS", "0"]);
    assert_eq!(ended.int(), 3);
    assert_eq!(stats(&*backend, "q").await.ready, 3, "the leases have expired");
    let again = claim(&*backend, &["q"], 3).await.unwrap();
    assert!(again.jobs.iter().all(|leased| leased.job.losses == 1 && leased.job.attempts == 0));

    proxy.cut_reply_after(0);
    let settled = backend.settle(&done_settlements(&again)).await;
    assert_error(settled, ErrorKind::OutcomeUnknown, &[]);
    assert_eq!(backend.settle(&done_settlements(&again)).await.unwrap(), [Settled::LostLease; 3]);
    let counts = stats(&*backend, "q").await;
    assert_eq!((counts.running, counts.totals.unwrap().done), (0, 3));
}

fn settlement_of_no_lease() -> [Settlement; 1] {
    let lease = Lease { queue: queue("q"), job: job("q").id, token: FencingToken(1) };
    [Settlement::new(lease, Verdict::Done)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_killed_at_any_moment_lose_nothing() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    let stop = AtomicBool::new(false);
    let answers = AtomicU64::new(0);
    const MIN_PAUSE: Duration = Duration::from_millis(3);
    const MAX_PAUSE: Duration = Duration::from_secs(5);
    let killer = async {
        let mut connection = redis.connect();
        let (mut pause, mut seen) = (MIN_PAUSE, 0);
        while !stop.load(Ordering::Relaxed) {
            connection.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            tokio::time::sleep(pause).await;
            // If connecting and calling take longer than the pause, no call ever succeeds.
            let before = std::mem::replace(&mut seen, answers.load(Ordering::Relaxed));
            pause = if seen > before { MIN_PAUSE } else { (pause * 2).min(MAX_PAUSE) };
        }
    };
    const JOBS: u64 = 400;
    let work = async {
        for _ in 0..JOBS / 4 {
            let jobs: Vec<_> = (0..4).map(|_| job("q")).collect();
            retry(|| backend.schedule(jobs.clone())).await;
            answers.fetch_add(1, Ordering::Relaxed);
        }
        let mut ended = 0;
        let mut lease = Duration::from_millis(200);
        while ended < JOBS {
            let claimed = retry(|| claim_for(&*backend, &["q"], 50, lease)).await;
            answers.fetch_add(1, Ordering::Relaxed);
            let ended_now = done_settlements(&claimed);
            retry(|| backend.settle(&ended_now)).await;
            answers.fetch_add(1, Ordering::Relaxed);
            let before = ended;
            ended = retry(|| backend.stats(&[])).await[0].totals.unwrap().done;
            answers.fetch_add(1, Ordering::Relaxed);
            if ended == before && !ended_now.is_empty() {
                // The leases were too short for a slow machine.
                lease = (lease * 2).min(Duration::from_secs(5));
            }
        }
        stop.store(true, Ordering::Relaxed);
    };
    let work = async { tokio::time::timeout(TIMEOUT * 5, work).await.expect("the work ends") };
    tokio::join!(killer, work);
    // The last connection may have been killed after the work was done.
    let counts = retry(|| backend.stats(&[])).await.remove(0);
    let totals = counts.totals.unwrap();
    assert_eq!((totals.created, totals.done, counts.ready, counts.running), (JOBS, JOBS, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed_at_any_moment_are_sent_again() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    let stop = AtomicBool::new(false);
    let flusher = async {
        let mut connection = redis.connect();
        while !stop.load(Ordering::Relaxed) {
            connection.command(&["SCRIPT", "FLUSH"]);
            tokio::task::yield_now().await;
        }
    };
    let work = async {
        for _ in 0..100 {
            let jobs = (0..3).map(|_| job("q")).collect();
            backend.schedule(jobs).await.expect("no call fails");
            let claimed = claim(&*backend, &["q"], 3).await.expect("no call fails");
            assert_eq!(claimed.jobs.len(), 3);
            let settled = backend.settle(&done_settlements(&claimed)).await.expect("no call fails");
            assert_eq!(settled, [Settled::Accepted; 3]);
        }
        stop.store(true, Ordering::Relaxed);
    };
    tokio::join!(flusher, work);
}

#[tokio::test]
async fn a_killed_listener_connects_again() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    let mut wakeups = backend.listen(&[queue("q")], "test").await.unwrap();
    tokio::time::timeout(TIMEOUT, wakeups.next()).await.expect("the first wake-up");
    for _ in 0..3 {
        assert_eq!(redis.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).int(), 1);
        // Messages published meanwhile are lost, so a new connection is itself a wake-up.
        tokio::time::timeout(TIMEOUT, wakeups.next()).await.expect("it is connected again");
        let new = in_an_hour(job("q"));
        let due = backend.schedule(vec![new.clone()]).await.unwrap()[0].due();
        let hint = tokio::time::timeout(TIMEOUT, wakeups.next()).await;
        assert_eq!(hint.expect("the new connection delivers wake-ups").due, due);
        backend.cancel(&[by_id(&new)]).await.unwrap();
    }
}
