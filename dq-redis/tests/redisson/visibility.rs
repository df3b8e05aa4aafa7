//! Redisson's order list with each `java_visibility` setting, and the index of jobs scheduled here.

use dq_core::{Cancelled, Due, Scheduled};

use crate::common::{HOUR, by_key, dead, queue, replay_all, settle};
use crate::redisson::fixture::{Fixture, INDEX, ORDER, TIMEOUT, job, keyed};

#[tokio::test]
async fn delivered_entries_are_swept_from_the_order_list_and_waiting_ones_are_kept() {
    // With `hidden`, only entries from Java are in the order list.
    let hidden = Fixture::with("").await;
    hidden.schedule(vec![job(HOUR, "ours")]).await;
    assert_eq!(hidden.len("LLEN", ORDER), 0);
    for n in 0..250 {
        let due = if n < 200 { 1_000 } else { 9_000_000_000_000 };
        hidden.java_offers(n, due, b"java");
    }
    let approximate = Fixture::with("?java_visibility=approximate").await;
    approximate.schedule((0..50).map(|_| job(HOUR, "pending")).collect()).await;
    approximate.schedule((0..200).map(|_| job(Due::NOW, "due")).collect()).await;

    for (fixture, waiting) in [(hidden, 51), (approximate, 50)] {
        assert_eq!(fixture.len("LLEN", ORDER), 250);
        for _ in 0..10 {
            fixture.drain(20).await;
        }
        assert_eq!(fixture.len("ZCARD", TIMEOUT), waiting);
        // Up to a tenth may be garbage.
        let length = fixture.len("LLEN", ORDER);
        assert!((50..=60).contains(&length), "{length} entries are in the order list");
    }
}

#[tokio::test]
async fn exact_keeps_exactly_the_waiting_entries() {
    let fixture = Fixture::with("?java_visibility=exact").await;
    let member = fixture.java_offers(7, 1_000, b"java");
    fixture.schedule(vec![job(Due::NOW, "due"), keyed(HOUR, "later", "k")]).await;
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
    let later = [by_key(&queue(), "k")];
    assert_eq!(fixture.backend.cancel(&later).await.unwrap(), [Cancelled::Cancelled]);
    assert_eq!(fixture.len("EXISTS", ORDER) + fixture.len("EXISTS", TIMEOUT), 0);
}

#[tokio::test]
async fn index_entries_of_jobs_that_java_took_are_removed() {
    let fixture = Fixture::with("").await;
    let past = dq_core::Timestamp::from_millis(1_000);
    fixture.schedule((0..300).map(|_| job(past, "taken")).collect()).await;
    fixture.schedule(vec![keyed(past, "taken", "k")]).await;
    assert_eq!(fixture.len("HLEN", INDEX), 301);
    fixture.redis.command(&["DEL", TIMEOUT]);
    let again = fixture.backend.schedule(vec![keyed(HOUR, "new", "k")]).await.unwrap();
    assert!(matches!(again[0], Scheduled::Created(_)), "the key is free: {again:?}");
    for _ in 0..60 {
        fixture.schedule((0..10).map(|_| job(HOUR, "more")).collect()).await;
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
    fixture.schedule(vec![job(HOUR, "x")]).await;
    let is_found = async || {
        let findings = fixture.backend.check().await;
        findings.iter().any(|finding| finding.code == "redisson.long-order-list")
    };
    assert!(!is_found().await);
    // `check` warns from this length on.
    let many: Vec<String> = (0..30_000).map(|n| n.to_string()).collect();
    let words = ["RPUSH", ORDER].into_iter().chain(many.iter().map(String::as_str));
    fixture.redis.command(&words.collect::<Vec<_>>());
    assert!(is_found().await);
}

#[tokio::test]
async fn a_key_of_a_job_that_java_took_does_not_block_a_replay() {
    let fixture = Fixture::with("").await;
    fixture.schedule(vec![keyed(Due::NOW, "dead", "k")]).await;
    let leased = fixture.claim(1).await.remove(0);
    settle(&*fixture.backend, &leased, dead()).await;
    fixture.schedule(vec![keyed(HOUR, "taken", "k")]).await;
    assert_eq!(replay_all(&*fixture.backend, &queue()).await, 0, "a waiting job has the key");

    fixture.redis.command(&["DEL", TIMEOUT]);
    assert_eq!(replay_all(&*fixture.backend, &queue()).await, 1, "the key is free");
}

#[tokio::test]
async fn a_queue_that_only_java_fills_is_counted_and_checked() {
    let fixture = Fixture::with("").await;
    fixture.java_offers(1, 9_000_000_000_000, b"java");
    fixture.redis.command(&["ZADD", TIMEOUT, "1000", "no member"]);
    let _wakeups = fixture.backend.listen(&[queue()], "test").await.unwrap();
    fixture.drain(1).await;
    let stats = fixture.backend.stats(&[]).await.unwrap();
    assert_eq!((stats.len(), stats[0].scheduled), (1, 1), "{stats:?}");
    assert!(fixture.backend.check().await.iter().any(|finding| finding.code == "redis.strays"));
}
