//! The destination list, from which Java's `take()` pops. Its payloads are due jobs for Rust too,
//! and due jobs are transferred to it for Java.

use std::time::Duration;

use dq_core::{Due, JobState, Operation, Verdict};

use crate::fixture::{DESTINATION, Fixture, LATER, TIMEOUT, job, open, queue};

const MAX_WAIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_payload_that_java_adds_directly_wakes_a_listener() {
    let fixture = Fixture::with("").await;
    let mut wakeups = fixture.backend.listen(&[queue()]).await.unwrap();
    // The watching connection may not exist yet. It also reports present elements.
    fixture.redis.command(&["RPUSH", DESTINATION, "direct"]);
    loop {
        tokio::time::timeout(MAX_WAIT, wakeups.next()).await.expect("the watch wakes the listener");
        let jobs = fixture.drain(10).await;
        if let [job] = &jobs[..] {
            assert_eq!(job.job.payload, "direct");
            break;
        }
    }
    assert_eq!(fixture.backend.stats(&[queue()]).await.unwrap()[0].stored(), 0);
}

#[tokio::test]
async fn watching_the_list_removes_nothing_even_if_connections_break() {
    let fixture = Fixture::with("").await;
    let other = open(&fixture.redis, "").await;
    let mut first = fixture.backend.listen(&[queue()]).await.unwrap();
    let mut second = other.listen(&[queue()]).await.unwrap();
    fixture.redis.command(&["RPUSH", DESTINATION, "a", "b"]);
    tokio::time::timeout(MAX_WAIT, first.next()).await.unwrap();
    tokio::time::timeout(MAX_WAIT, second.next()).await.unwrap();
    // All connections break, including the watches; the list is unchanged.
    fixture.redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let list = fixture.redis.command(&["LRANGE", DESTINATION, "0", "-1"]);
    let elements: Vec<String> = list.list().iter().map(dq_servers::Reply::text).collect();
    assert_eq!(elements, ["a", "b"]);
}

#[tokio::test]
async fn payloads_in_the_list_are_ready_jobs_and_retried_natively() {
    let fixture = Fixture::with("").await;
    fixture.redis.command(&["RPUSH", DESTINATION, "a", "b", "c"]);
    let stats = &fixture.backend.stats(&[queue()]).await.unwrap()[0];
    assert_eq!((stats.ready, stats.scheduled, stats.next_due.is_some()), (3, 0, true));
    let jobs = fixture.claim(2).await;
    assert_eq!([&jobs[0].job.payload, &jobs[1].job.payload], ["a", "b"]);
    assert_ne!(jobs[0].job.id, jobs[1].job.id);
    // A retried job is native: Java clients cannot take it.
    let settlement =
        dq_core::Settlement::new(jobs[0].lease(), Verdict::retry(Due::NOW, "a reason"));
    fixture.backend.settle(&[settlement]).await.unwrap();
    assert_eq!(fixture.len("LLEN", DESTINATION), 1);
    let again = fixture.claim(10).await;
    let retried = again.iter().find(|job| job.job.id == jobs[0].job.id).unwrap();
    assert_eq!((retried.job.attempts, &retried.job.payload[..]), (1, &b"a"[..]));
}

#[tokio::test]
async fn due_jobs_of_queues_that_java_consumes_are_transferred() {
    let redis = dq_servers::Redis::start();
    let mut config = dq_redis::RedissonConfig::new(redis.url());
    config.consumed_by_java.insert(queue());
    let transferring =
        dq_redis::RedissonBackend::connect(&config, &dq_core::config::Environment::default())
            .await
            .unwrap();
    let fixture = Fixture { backend: open(&redis, "").await, redis };
    let mut java = fixture.redis.connect();
    let waiting = tokio::task::spawn_blocking(move || java.command(&["BLPOP", DESTINATION, "0"]));
    fixture
        .backend
        .schedule(vec![job(Duration::from_millis(30), "x"), job(LATER, "y")])
        .await
        .unwrap();
    assert_eq!(waiting.await.unwrap().list()[1].text(), "x");
    assert_eq!(fixture.len("ZCARD", TIMEOUT), 1);
    drop(transferring);
}

#[tokio::test]
async fn undecodable_jobs_are_dead_with_javas_bytes() {
    let fixture = Fixture::with("?codec=json").await;
    fixture.java_offers(1, 1_000, b"{\"not\": \"json\"");
    assert!(fixture.claim(10).await.is_empty(), "no handler can read it");
    let queue = queue();
    let dead = dq_core::BrowseParams::new(&queue, JobState::Dead).limit(9).payloads(true);
    let page = fixture.backend.browse(dead).await.unwrap();
    assert_eq!(page.jobs[0].job.payload, "{\"not\": \"json\"");
    let (reason, _) = page.jobs[0].dead.clone().unwrap();
    assert_eq!(reason.kind, dq_core::DeadKind::Undecodable);
}

#[tokio::test]
async fn nothing_of_a_paused_queue_is_transferred() {
    let redis = dq_servers::Redis::start();
    let fixture = Fixture { backend: open(&redis, "").await, redis };
    let queue = queue();
    fixture.backend.operate(Operation::Pause { queue: &queue }).await.unwrap();
    fixture.backend.schedule(vec![job(Due::NOW, "x")]).await.unwrap();
    let mut config = dq_redis::RedissonConfig::new(fixture.redis.url());
    config.consumed_by_java.insert(queue.clone());
    let transferring =
        dq_redis::RedissonBackend::connect(&config, &dq_core::config::Environment::default())
            .await
            .unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((fixture.len("ZCARD", TIMEOUT), fixture.len("LLEN", DESTINATION)), (1, 0));
    fixture.backend.operate(Operation::Resume { queue: &queue }).await.unwrap();
    let mut java = fixture.redis.connect();
    let waiting = tokio::task::spawn_blocking(move || java.command(&["BLPOP", DESTINATION, "0"]));
    assert_eq!(waiting.await.unwrap().list()[1].text(), "x");
    drop(transferring);
}
