//! Java's order list in each mode, and what is noted beside it.

use dq_core::{Cancelled, Due, JobRef, Scheduled};

use crate::rig::{LATER, NOTES, ORDER, Rig, TIMEOUT, job, keyed, queue};

#[tokio::test]
async fn off_writes_nothing_there_and_sweeps_what_java_wrote() {
    let rig = Rig::with("").await;
    rig.backend.schedule(vec![job(LATER, "ours")]).await.unwrap();
    assert_eq!(rig.len("LLEN", ORDER), 0);
    for n in 0..200 {
        rig.java_offers(n, 1_000, b"java");
    }
    for n in 200..250 {
        rig.java_offers(n, 9_000_000_000_000, b"pending");
    }
    for _ in 0..10 {
        rig.drain(20).await;
    }
    // A tenth may be garbage; what waits is all there.
    assert_eq!(rig.len("ZCARD", TIMEOUT), 51);
    let left = rig.len("LLEN", ORDER);
    assert!((50..=60).contains(&left), "{left} are left in the order list");
}

#[tokio::test]
async fn lazy_sweeps_what_we_wrote() {
    let rig = Rig::with("?order_list=lazy").await;
    let pending: Vec<_> = (0..50).map(|_| job(LATER, "pending")).collect();
    rig.backend.schedule(pending).await.unwrap();
    rig.backend.schedule((0..200).map(|_| job(Due::NOW, "due")).collect()).await.unwrap();
    assert_eq!(rig.len("LLEN", ORDER), 250);
    for _ in 0..10 {
        rig.drain(20).await;
    }
    let left = rig.len("LLEN", ORDER);
    assert!((50..=60).contains(&left), "{left} are left in the order list");
}

#[tokio::test]
async fn strict_keeps_exactly_what_waits() {
    let rig = Rig::with("?order_list=strict").await;
    let member = rig.java_offers(7, 1_000, b"java");
    rig.backend.schedule(vec![job(Due::NOW, "due"), keyed(LATER, "later", "k")]).await.unwrap();
    assert_eq!(rig.len("LLEN", ORDER), 3);
    let taken: Vec<_> = rig.drain(10).await.into_iter().map(|job| job.job.payload).collect();
    assert_eq!(taken, ["java", "due"], "oldest due first, whoever made it");
    let left = rig.redis.command(&["LRANGE", ORDER, "0", "-1"]);
    assert_eq!(left.list().len(), 1);
    assert_ne!(left.list()[0].bytes(), member);
    let cancel = JobRef::new(queue(), dq_core::JobKey::new("k").unwrap());
    assert_eq!(rig.backend.cancel(&[cancel]).await.unwrap(), [Cancelled::Cancelled]);
    assert_eq!(rig.len("EXISTS", ORDER) + rig.len("EXISTS", TIMEOUT), 0);
}

#[tokio::test]
async fn notes_of_jobs_that_java_took_are_forgotten() {
    let rig = Rig::with("").await;
    let past = dq_core::Timestamp::from_millis(1_000);
    rig.backend.schedule((0..300).map(|_| job(past, "taken")).collect()).await.unwrap();
    rig.backend.schedule(vec![keyed(past, "taken", "k")]).await.unwrap();
    assert_eq!(rig.len("HLEN", NOTES), 301);
    // As Java's transfer and take do.
    rig.redis.command(&["DEL", TIMEOUT]);
    let again = rig.backend.schedule(vec![keyed(LATER, "new", "k")]).await.unwrap();
    assert!(matches!(again[0], Scheduled::Created(_)), "the key is free: {again:?}");
    for _ in 0..60 {
        rig.backend.schedule((0..10).map(|_| job(LATER, "more")).collect()).await.unwrap();
    }
    assert_eq!(rig.len("HLEN", NOTES), rig.len("ZCARD", TIMEOUT), "no note is left without a job");
}

#[tokio::test]
async fn a_long_list_in_strict_is_a_finding() {
    let rig = Rig::with("?order_list=strict").await;
    rig.backend.schedule(vec![job(LATER, "x")]).await.unwrap();
    let code = "redisson.long-order-list";
    assert!(rig.backend.check().await.iter().all(|finding| finding.code != code));
    let many: Vec<String> = (0..30_000).map(|n| n.to_string()).collect();
    let words: Vec<&str> =
        ["RPUSH", ORDER].into_iter().chain(many.iter().map(String::as_str)).collect();
    rig.redis.command(&words);
    assert!(rig.backend.check().await.iter().any(|finding| finding.code == code));
}

#[tokio::test]
async fn a_key_whose_job_java_took_holds_up_no_replay() {
    let rig = Rig::with("").await;
    rig.backend.schedule(vec![keyed(Due::NOW, "dead", "k")]).await.unwrap();
    let leased = rig.claim(1).await.remove(0);
    let reason = dq_core::DeadReason::new(dq_core::DeadKind::Rejected, "no");
    let verdict = dq_core::Verdict::Dead { reason, failed: true };
    let settlement = dq_core::Settlement { lease: leased.lease(), verdict };
    rig.backend.settle(&[settlement]).await.unwrap();
    rig.backend.schedule(vec![keyed(LATER, "taken", "k")]).await.unwrap();

    let replay = async || {
        let queue = queue();
        let operation = dq_core::Operation::Replay { queue: &queue, jobs: None, due: Due::NOW };
        rig.backend.operate(operation).await.unwrap().affected
    };
    assert_eq!(replay().await, 0, "the key is live");
    rig.redis.command(&["DEL", TIMEOUT]);
    assert_eq!(replay().await, 1, "nobody has the key any more");
}

#[tokio::test]
async fn a_queue_that_only_java_fills_is_counted_and_checked() {
    let rig = Rig::with("").await;
    rig.java_offers(1, 9_000_000_000_000, b"java");
    rig.redis.command(&["ZADD", TIMEOUT, "1000", "no member"]);
    let _wakeups = rig.backend.listen(&[queue()]).await.unwrap();
    rig.drain(1).await;
    let stats = rig.backend.stats(&[]).await.unwrap();
    assert_eq!((stats.len(), stats[0].scheduled), (1, 1), "{stats:?}");
    assert!(rig.backend.check().await.iter().any(|finding| finding.code == "redis.strays"));
}
