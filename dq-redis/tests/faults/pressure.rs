//! Servers that run but do not serve: full, busy, loading, frozen, or with a failing disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::{ErrorKind, Scheduled};
use dq_servers::Redis;

use crate::faults::fixture::{
    assert_error, claim, claim_for, connect, done_settlements, job, open, queue, retry, stats,
    wait_until,
};

#[tokio::test]
async fn a_full_server_takes_no_jobs_and_can_be_emptied() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    backend.schedule((0..20).map(|_| job("q")).collect()).await.unwrap();
    let lease = Duration::from_millis(50);
    assert_eq!(claim_for(&*backend, &["q"], 5, lease).await.unwrap().jobs.len(), 5);
    // An index entry without a job: a claim removes it even on a full server.
    redis.command(&["ZADD", "{dq}:due:q", "1", "no job"]);
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);

    let new = job("q");
    let error =
        assert_error(backend.schedule(vec![new.clone()]).await, ErrorKind::Full, &["maxmemory"]);
    assert!(error.is_retryable());
    assert_error(backend.schedule(vec![job("new-queue")]).await, ErrorKind::Full, &[]);
    // No command may allocate memory. 21 entries: the jobs, and the one without a job.
    wait_until("the leases expire", async || stats(&*backend, "q").await.ready == 21).await;
    let claimed = claim(&*backend, &["q"], 100).await.unwrap();
    assert_eq!(claimed.jobs.len(), 20);
    backend.settle(&done_settlements(&claimed)).await.unwrap();
    open(&redis.url()).await;

    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let answer = backend.schedule(vec![new]).await.unwrap();
    assert!(matches!(answer[..], [Scheduled::Created(_)]), "the refused call stored nothing");
    assert_eq!(stats(&*backend, "q").await.totals.unwrap().created, 21);
}

#[tokio::test]
async fn a_server_that_cannot_save_takes_no_jobs() {
    let redis = Redis::options().set("save", "3600 1000").start();
    let backend = open(&redis.url()).await;
    // A snapshot cannot replace a directory.
    std::fs::create_dir(redis.dir().join("dump.rdb")).unwrap();
    redis.command(&["BGSAVE"]);
    let failed = async || {
        redis.command(&["INFO", "persistence"]).text().contains("rdb_last_bgsave_status:err")
    };
    wait_until("the snapshot fails", failed).await;
    assert_error(backend.schedule(vec![job("q")]).await, ErrorKind::ReadOnly, &["MISCONF", "disk"]);
    assert_eq!(stats(&*open(&redis.url()).await, "q").await.ready, 0);
    std::fs::remove_dir(redis.dir().join("dump.rdb")).unwrap();
    assert!(redis.command(&["SAVE"]).is_ok());
    backend.schedule(vec![job("q")]).await.expect("it can save again");
}

#[tokio::test]
async fn a_server_without_its_replicas_is_unavailable() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let answer = backend.schedule(vec![job("q")]).await;
    let error = assert_error(answer, ErrorKind::Unavailable, &["NOREPLICAS", "min-replicas"]);
    assert!(error.is_retryable());
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    backend.schedule(vec![job("q")]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_busy_with_a_foreign_script_is_unavailable_until_it_ends() {
    let redis = Redis::options().set("lua-time-limit", "20").start();
    let backend = open(&redis.url()).await;
    let mut other = redis.connect();
    let running =
        tokio::task::spawn_blocking(move || other.command(&["EVAL", "while true do end", "0"]));
    wait_until("the script is noticed", async || backend.now().await.is_err()).await;
    let answer = backend.schedule(vec![job("q")]).await;
    let error = assert_error(answer, ErrorKind::Unavailable, &["BUSY", "SCRIPT KILL"]);
    assert!(error.is_retryable());
    assert!(redis.command(&["SCRIPT", "KILL"]).is_ok());
    running.await.unwrap();
    backend.schedule(vec![job("q")]).await.expect("the script has ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loading_server_is_unavailable_until_it_has_loaded() {
    // Loading the keys takes 20 s, during which the server replies.
    let redis = Redis::options()
        .set("save", "3600 1000")
        .set("key-load-delay", "200000")
        .set("loading-process-events-interval-bytes", "1024")
        .start();
    let redis = Arc::new(redis);
    let filler = "x".repeat(1024);
    for key in 0..100 {
        redis.command(&["SET", &key.to_string(), &filler]);
    }
    redis.command(&["CONFIG", "SET", "rdbcompression", "no"]);
    let backend = open(&redis.url()).await;
    let kept = job("q");
    backend.schedule(vec![kept.clone()]).await.unwrap();
    assert!(redis.command(&["SAVE"]).is_ok());
    redis.kill();
    let restarting = Arc::clone(&redis);
    let restarting = tokio::task::spawn_blocking(move || restarting.restart());
    wait_until("it loads", async || match backend.schedule(vec![kept.clone()]).await {
        Ok(_) => panic!("it has loaded before the first call"),
        Err(error) => error.to_string().contains("LOADING"),
    })
    .await;
    assert_error(connect(&redis.url()).await, ErrorKind::Unavailable, &["LOADING"]);
    assert!(redis.command(&["CONFIG", "SET", "key-load-delay", "0"]).is_ok());
    restarting.await.unwrap();
    let claimed = claim(&*backend, &["q"], 1).await.unwrap();
    assert_eq!(claimed.jobs[0].job.id, kept.id);
}

#[tokio::test]
async fn calls_to_a_frozen_server_time_out_and_later_calls_succeed() {
    let redis = Redis::start();
    let url = format!("{}?response_timeout=500ms", redis.url());
    let backend = retry(|| connect(&url)).await;
    let other = retry(|| connect(&url)).await;
    let queues = [queue("q")];
    let _first = retry(|| backend.listen(&queues, "test")).await;
    let (old, new) = (job("q"), job("q"));
    retry(|| backend.schedule(vec![old.clone()])).await;
    redis.freeze();
    let began = Instant::now();
    // The process first registers a new queue: this fails before a job is sent.
    let answer = other.schedule(vec![job("never-used-before")]).await;
    assert_error(answer, ErrorKind::Unavailable, &[]);
    assert_error(
        backend.schedule(vec![new.clone()]).await,
        ErrorKind::OutcomeUnknown,
        &["same job ids"],
    );
    assert_error(claim(&*other, &["q"], 1).await, ErrorKind::Unavailable, &[]);
    assert_error(connect(&url).await, ErrorKind::Unavailable, &[]);
    let _second = backend.listen(&[queue("r")], "test").await.unwrap();
    other.close().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    redis.thaw();
    // Either the resumed server or the repeated call stored the job.
    let answer = retry(|| backend.schedule(vec![new.clone()])).await;
    assert_eq!(answer[0].id(), new.id);
    assert_eq!(stats(&*backend, "q").await.totals.unwrap().created, 2);
    let patient = open(&redis.url()).await;
    assert_eq!(claim(&*patient, &["q"], 9).await.unwrap().jobs.len(), 2);
}
