//! Crashes, lost connections and refusals by the server.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::{Environment, backend_from_url};
use dq_core::{
    Cancelled, ClaimParams, DeadKind, DeadReason, Due, ErrorKind, HistoryLimit, HistoryLimits,
    JobKey, JobRef, NewJob, OnConflict, Scheduled, Settlement, Verdict, Want,
};
use dq_servers::{Postgres, shared_postgres};
use dq_testkit::faults::TcpProxy;
use dq_testkit::fixture::{
    CrashWorkload, assert_error, blocking, by_id, claim_for, in_an_hour, job, keyed, queue, retry,
    stats, wait_until,
};

use crate::connect::{connect, open};

const LEASE: Duration = Duration::from_secs(600);

async fn start() -> Arc<Postgres> {
    blocking(|| Arc::new(Postgres::start())).await
}

async fn crash(postgres: &Arc<Postgres>) {
    let postgres = Arc::clone(postgres);
    let crash = move || {
        postgres.kill();
        postgres.restart();
    };
    blocking(crash).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_repeated_after_a_crash_store_each_job_once() {
    let postgres = start().await;
    let backend = open(&postgres.url()).await;
    let scheduling = async {
        for _ in 0..200 {
            let batch: Vec<NewJob> = (0..5).map(|_| in_an_hour(job("q"))).collect();
            retry(|| backend.schedule(batch.clone())).await;
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
    };
    let crashing = async {
        for pause in [150, 90, 210] {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            crash(&postgres).await;
        }
    };
    tokio::join!(scheduling, crashing);
    let counts = stats(&*backend, "q").await;
    assert_eq!((counts.scheduled, counts.totals.unwrap().created), (1_000, 1_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_or_repeated_when_the_server_is_killed() {
    let postgres = start().await;
    let (lease_for, snooze) = (Duration::from_millis(400), Duration::from_millis(200));
    let workload = CrashWorkload { lease_for, snooze, min_done: 50, min_calls: 500 };
    let history = HistoryLimits::all(HistoryLimit::default());
    let config = backend_from_url(&postgres.url()).unwrap();
    let backend = config.connect(&Environment::default().history(history)).await.unwrap();
    let pauses = [150, 230, 90, 310].map(Duration::from_millis);
    workload.run(backend, &pauses, async || crash(&postgres).await).await;
}

/// The server gets the calls, but replies too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_leaves_the_outcome_of_changes_unknown() {
    let postgres = start().await;
    let address = postgres.address();
    let url = format!("{}?response_timeout=1s&connections=1", postgres.url());
    // Each call has a connection of its own on the frozen server. Only `claiming` claims: a process
    // that has claimed also maintains the store, on the same connection.
    let connected = || retry(|| connect(&url));
    let (backend, settling) = (connected().await, connected().await);
    let (reading, claiming) = (connected().await, connected().await);
    let counting = connected().await;
    retry(|| backend.schedule(vec![job("q")])).await;
    let leased = retry(|| claim_for(&*claiming, &["q"], 1, LEASE)).await.jobs.remove(0);
    let new = in_an_hour(job("q"));
    let done = [Settlement::new(leased.lease(), Verdict::Done)];
    postgres.freeze();
    // It waits longer than the others, so it sees the server again.
    let counted = tokio::spawn(async move { counting.stats(&[]).await });
    let sought = by_id(&new);
    let (stored, settled, found, claimed) = tokio::join!(
        backend.schedule(vec![new.clone()]),
        settling.settle(&done),
        reading.get(&sought),
        claim_for(&*claiming, &["q"], 1, LEASE),
    );
    // There is no connection to send it.
    let unsent = backend.schedule(vec![in_an_hour(job("q"))]).await;
    postgres.thaw();
    let words = [&*address, "1s", "same job ids"];
    assert_error(stored, ErrorKind::OutcomeUnknown, &words);
    assert_error(settled, ErrorKind::OutcomeUnknown, &words);
    assert_error(found, ErrorKind::Unavailable, &[&address, "1s"]);
    assert_error(claimed, ErrorKind::Unavailable, &[&address]);
    assert_error(unsent, ErrorKind::Unavailable, &[&address]);
    assert_eq!(counted.await.unwrap().unwrap().len(), 1);

    let again = retry(|| backend.schedule(vec![new.clone()])).await;
    assert!(
        matches!(again[..], [Scheduled::Created(receipt)] if receipt.id == new.id),
        "{again:?}"
    );
    wait_until("the settlement has taken effect", async || {
        let counts = stats(&*backend, "q").await;
        (counts.scheduled, counts.running, counts.totals.unwrap().done) == (1, 0, 1)
    })
    .await;
}

#[tokio::test]
async fn a_batch_cut_at_any_byte_is_stored_once() {
    let postgres = shared_postgres();
    let proxy = TcpProxy::to(postgres.address()).await;
    let url = proxy.url(&postgres.create_database());
    let backend = open(&format!("{url}?connections=1")).await;
    let mut stored = 0;
    for bytes in [0, 1, 20, 200, 600, 5_000] {
        // The cut may hit the listener or the maintenance instead.
        let (batch, refusal) = loop {
            retry(|| backend.now()).await;
            let batch: Vec<_> = (0..101).map(|_| in_an_hour(job("q"))).collect();
            stored += 101;
            proxy.cut_request_after(bytes);
            if let Err(refusal) = backend.schedule(batch.clone()).await {
                break (batch, Err::<(), _>(refusal));
            }
        };
        assert_error(refusal, ErrorKind::OutcomeUnknown, &["same job ids"]);
        let again = retry(|| backend.schedule(batch.clone())).await;
        assert!(again.iter().all(Scheduled::is_stored), "{again:?} after {bytes} bytes");
        assert_eq!(stats(&*backend, "q").await.scheduled, stored);
    }
}

#[tokio::test]
async fn a_cancel_whose_reply_is_cut_can_be_repeated() {
    let postgres = shared_postgres();
    let proxy = TcpProxy::to(postgres.address()).await;
    let url = proxy.url(&postgres.create_database());
    let backend = open(&format!("{url}?connections=1")).await;
    for (job, bytes) in (0..101).map(|_| in_an_hour(job("q"))).zip(0..10) {
        let target = [by_id(&job)];
        let _ = retry(|| backend.schedule(vec![job.clone()])).await;
        proxy.cut_reply_after(bytes);
        match backend.cancel(&target).await {
            Ok(answer) => assert_eq!(answer, [Cancelled::Cancelled]),
            refusal => {
                assert_error(refusal, ErrorKind::OutcomeUnknown, &["same job ids"]);
            }
        }
        assert_eq!(retry(|| backend.cancel(&target)).await, [Cancelled::NotFound]);
    }
}

#[tokio::test]
async fn an_abandoned_claim_hands_its_jobs_back() {
    let postgres = shared_postgres();
    let proxy = TcpProxy::to(postgres.address()).await;
    let backend = open(&proxy.url(&postgres.create_database())).await;
    backend.schedule((0..10).map(|_| job("q")).collect()).await.unwrap();
    proxy.pause_replies();
    let abandoned = claim_for(&*backend, &["q"], 10, LEASE);
    let claimed = tokio::time::timeout(Duration::from_millis(300), abandoned).await;
    claimed.expect_err("the reply is held back");
    proxy.resume();
    wait_until("all jobs are ready", async || stats(&*backend, "q").await.ready == 10).await;
    let again = claim_for(&*backend, &["q"], 10, LEASE).await.unwrap();
    assert!(again.jobs.iter().all(|leased| leased.job.deliveries == 1 && leased.job.losses == 0));
}

#[tokio::test]
async fn a_statement_timeout_is_unavailable() {
    let url = shared_postgres().create_database();
    // Without a limit: creating the schema takes longer on a busy machine.
    let backend = open(&url).await;
    backend.schedule(vec![job("q")]).await.unwrap();
    let url_with_limit = format!("{url}?options=-c%20statement_timeout%3D200ms");
    let limited = retry(|| connect(&url_with_limit)).await;
    let (blocker, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    blocker.batch_execute("BEGIN; LOCK TABLE dq.job").await.unwrap();
    let words = ["statement timeout", "statement_timeout"];
    let stored = limited.schedule(vec![job("q")]).await;
    assert_error(stored, ErrorKind::Unavailable, &words);
    assert_error(limited.stats(&[]).await, ErrorKind::Unavailable, &words);
    blocker.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(stats(&*backend, "q").await.ready, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn opposite_orders_of_keys_never_fail() {
    let url = blocking(|| shared_postgres().create_database()).await;
    let mut tasks = Vec::new();
    for number in 0..6 {
        let backend = open(&url).await;
        tasks.push(tokio::spawn(async move {
            for round in 0..40 {
                let name = |i: usize| format!("k{}", if number % 2 == 0 { i } else { 39 - i });
                let policy = [OnConflict::Replace, OnConflict::Keep][round % 2];
                let new = |i: usize| in_an_hour(keyed(["a", "b"][i % 2], &name(i)));
                let jobs: Vec<_> = (0..40).map(|i| new(i).on_conflict(policy)).collect();
                let key = |job: &NewJob| JobRef::new(job.queue.clone(), job.key.clone().unwrap());
                let keys: Vec<_> = jobs.iter().map(key).collect();
                assert_eq!(backend.schedule(jobs).await.unwrap().len(), 40);
                if number > 3 {
                    backend.cancel(&keys).await.unwrap();
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn nul_in_texts_is_replaced_and_elsewhere_kept_or_refused() {
    let backend = open(&shared_postgres().create_database()).await;
    JobKey::new("a\0b").expect_err("a control character");
    let mut new = job("q").payload("\0");
    new.headers.insert("na\0me", "a\0b");
    backend.schedule(vec![new.clone()]).await.unwrap();
    let wants = [Want::new(queue("q"), 1, LEASE)];
    let claim = async || {
        let claimed = backend.claim(ClaimParams::new(&wants, 1, "wor\0ker")).await;
        claimed.unwrap().jobs.remove(0)
    };
    let view = async || backend.get(&by_id(&new)).await.unwrap().unwrap();
    let leased = claim().await;
    assert_eq!((&leased.job.payload[..], &leased.job.headers), (&b"\0"[..], &new.headers));
    assert_eq!(view().await.worker.as_deref(), Some("wor\u{fffd}ker"));
    let retry = Verdict::retry(Due::NOW, "an \0 error");
    backend.settle(&[Settlement::new(leased.lease(), retry)]).await.unwrap();
    assert_eq!(view().await.last_error.as_deref(), Some("an \u{fffd} error"));
    let dead = Verdict::dead(DeadReason::new(DeadKind::Rejected, "\0"));
    backend.settle(&[Settlement::new(claim().await.lease(), dead)]).await.unwrap();
    assert_eq!(view().await.dead.unwrap().0.message, "\u{fffd}");
}

#[tokio::test]
async fn a_read_only_database() {
    let postgres = shared_postgres();
    let url = postgres.create_database();
    open(&url).await.schedule(vec![job("q")]).await.unwrap();
    let name = url.rsplit('/').next().unwrap();
    let setting = "SET default_transaction_read_only";
    postgres.execute(&format!("ALTER DATABASE {name} {setting} = on"));
    assert_error(connect(&url).await, ErrorKind::ReadOnly, &[name, "primary"]);
    let reader = open(&format!("{url}?target_session_attrs=any")).await;
    assert_eq!(stats(&*reader, "q").await.ready, 1);
    let words = [name, "database is read-only"];
    assert_error(reader.schedule(vec![job("q")]).await, ErrorKind::ReadOnly, &words);
    let claimed = claim_for(&*reader, &["q"], 1, LEASE).await;
    assert_error(claimed, ErrorKind::ReadOnly, &words);
    postgres.execute(&format!("ALTER DATABASE {name} {setting} = off"));
    open(&url).await.schedule(vec![job("q")]).await.unwrap();
}
