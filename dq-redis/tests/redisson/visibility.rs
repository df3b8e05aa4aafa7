//! Redisson's order list with each `java_visibility` setting, and the index of jobs scheduled here.

use dq_core::{Cancelled, Due, JobRef, Scheduled};

use crate::redisson::fixture::{Fixture, INDEX, LATER, ORDER, TIMEOUT, job, keyed, queue};

#[tokio::test]
async fn hidden_writes_nothing_to_the_order_list_and_sweeps_what_java_wrote() {
    let fixture = Fixture::with("").await;
    fixture.schedule(vec![job(LATER, "ours")]).await;
    assert_eq!(fixture.len("LLEN", ORDER), 0);
    for n in 0..200 {
        fixture.java_offers(n, 1_000, b"java");
    }
    for n in 200..250 {
        fixture.java_offers(n, 9_000_000_000_000, b"pending");
    }
    for _ in 0..10 {
        fixture.drain(20).await;
    }
    // Up to a tenth may be garbage; all waiting entries are kept.
    assert_eq!(fixture.len("ZCARD", TIMEOUT), 51);
    let length = fixture.len("LLEN", ORDER);
    assert!((50..=60).contains(&length), "{length} entries are in the order list");
}

#[tokio::test]
async fn approximate_keeps_waiting_entries_and_sweeps_delivered_ones() {
    let fixture = Fixture::with("?java_visibility=approximate").await;
    let pending: Vec<_> = (0..50).map(|_| job(LATER, "pending")).collect();
    fixture.schedule(pending).await;
    fixture.schedule((0..200).map(|_| job(Due::NOW, "due")).collect()).await;
    assert_eq!(fixture.len("LLEN", ORDER), 250);
    for _ in 0..10 {
        fixture.drain(20).await;
    }
    let length = fixture.len("LLEN", ORDER);
    assert!((50..=60).contains(&length), "{length} entries are in the order list");
}

#[tokio::test]
async fn exact_keeps_exactly_the_waiting_entries() {
    let fixture = Fixture::with("?java_visibility=exact").await;
    let member = fixture.java_offers(7, 1_000, b"java");
    fixture.schedule(vec![job(Due::NOW, "due"), keyed(LATER, "later", "k")]).await;
    assert_eq!(fixture.len("LLEN", ORDER), 3);
    let taken: Vec<_> = fixture.drain(10).await.into_iter().map(|job| job.job.payload).collect();
    assert_eq!(
        taken,
        ["java", "due"],
        "the oldest due time first, on whichever side it was scheduled"
    );
    let entries = fixture.redis.command(&["LRANGE", ORDER, "0", "-1"]);
    assert_eq!(entries.list().len(), 1);
    assert_ne!(entries.list()[0].bytes(), member);
    let cancel = JobRef::new(queue(), dq_core::JobKey::new("k").unwrap());
    assert_eq!(fixture.backend.cancel(&[cancel]).await.unwrap(), [Cancelled::Cancelled]);
    assert_eq!(fixture.len("EXISTS", ORDER) + fixture.len("EXISTS", TIMEOUT), 0);
}

#[tokio::test]
async fn index_entries_of_jobs_that_java_took_are_removed() {
    let fixture = Fixture::with("").await;
    let past = dq_core::Timestamp::from_millis(1_000);
    fixture.schedule((0..300).map(|_| job(past, "taken")).collect()).await;
    fixture.schedule(vec![keyed(past, "taken", "k")]).await;
    assert_eq!(fixture.len("HLEN", INDEX), 301);
    // As when Java's transfer and take remove all members.
    fixture.redis.command(&["DEL", TIMEOUT]);
    let again = fixture.backend.schedule(vec![keyed(LATER, "new", "k")]).await.unwrap();
    assert!(matches!(again[0], Scheduled::Created(_)), "the key is free: {again:?}");
    for _ in 0..60 {
        fixture.schedule((0..10).map(|_| job(LATER, "more")).collect()).await;
    }
    assert_eq!(
        fixture.len("HLEN", INDEX),
        fixture.len("ZCARD", TIMEOUT),
        "every index entry has a job"
    );
}

#[tokio::test]
async fn a_long_order_list_is_a_finding_with_exact() {
    let fixture = Fixture::with("?java_visibility=exact").await;
    fixture.schedule(vec![job(LATER, "x")]).await;
    let code = "redisson.long-order-list";
    assert!(fixture.backend.check().await.iter().all(|finding| finding.code != code));
    // `check` warns from this length on.
    let many: Vec<String> = (0..30_000).map(|n| n.to_string()).collect();
    let words: Vec<&str> =
        ["RPUSH", ORDER].into_iter().chain(many.iter().map(String::as_str)).collect();
    fixture.redis.command(&words);
    assert!(fixture.backend.check().await.iter().any(|finding| finding.code == code));
}

#[tokio::test]
async fn a_key_of_a_job_that_java_took_does_not_block_a_replay() {
    let fixture = Fixture::with("").await;
    fixture.schedule(vec![keyed(Due::NOW, "dead", "k")]).await;
    let leased = fixture.claim(1).await.remove(0);
    let reason = dq_core::DeadReason::new(dq_core::DeadKind::Rejected, "no");
    let verdict = dq_core::Verdict::Dead { reason, failed: true };
    let settlement = dq_core::Settlement::new(leased.lease(), verdict);
    fixture.backend.settle(&[settlement]).await.unwrap();
    fixture.schedule(vec![keyed(LATER, "taken", "k")]).await;

    let replay = async || {
        let queue = queue();
        let operation = dq_core::Operation::Replay {
            queue: &queue,
            jobs: &dq_testkit::fixture::dead_ids(&*fixture.backend, &queue).await[..],
            due: Due::NOW,
        };
        fixture.backend.operate(operation).await.unwrap().affected
    };
    assert_eq!(replay().await, 0, "a waiting job has the key");
    fixture.redis.command(&["DEL", TIMEOUT]);
    assert_eq!(replay().await, 1, "the key is free");
}

#[tokio::test]
async fn a_queue_that_only_java_fills_is_counted_and_checked() {
    let fixture = Fixture::with("").await;
    fixture.java_offers(1, 9_000_000_000_000, b"java");
    fixture.redis.command(&["ZADD", TIMEOUT, "1000", "no member"]);
    let _wakeups = fixture.backend.listen(&[queue()]).await.unwrap();
    fixture.drain(1).await;
    let stats = fixture.backend.stats(&[]).await.unwrap();
    assert_eq!((stats.len(), stats[0].scheduled), (1, 1), "{stats:?}");
    assert!(fixture.backend.check().await.iter().any(|finding| finding.code == "redis.strays"));
}
