//! The destination list, from which Java's `take()` pops.

use std::time::Duration;

use dq_core::{Due, Operation, Verdict};

use crate::common::{HOUR, queue, settle};
use crate::redisson::fixture::{DESTINATION, Fixture, TIMEOUT, job, open, open_with};

const MAX_WAIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_payload_that_java_adds_directly_wakes_a_listener() {
    let fixture = Fixture::with("").await;
    let mut wakeups = fixture.backend.listen(&[queue()], "test").await.unwrap();
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
    let mut first = fixture.backend.listen(&[queue()], "test").await.unwrap();
    let mut second = other.listen(&[queue()], "test").await.unwrap();
    fixture.redis.command(&["RPUSH", DESTINATION, "a", "b"]);
    tokio::time::timeout(MAX_WAIT, first.next()).await.unwrap();
    tokio::time::timeout(MAX_WAIT, second.next()).await.unwrap();
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
    settle(&*fixture.backend, &jobs[0], Verdict::retry(Due::NOW, "a reason")).await;
    assert_eq!(fixture.len("LLEN", DESTINATION), 1);
    let again = fixture.claim(10).await;
    let retried = again.iter().find(|job| job.job.id == jobs[0].job.id).unwrap();
    assert_eq!((retried.job.attempts, &retried.job.payload[..]), (1, &b"a"[..]));
}

#[tokio::test]
async fn due_jobs_of_queues_that_java_consumes_are_transferred_unless_paused() {
    let fixture = Fixture::with("").await;
    let queue = queue();
    fixture.backend.operate(Operation::Pause { queue: &queue }).await.unwrap();
    let due = job(Duration::from_millis(30), "x");
    fixture.schedule(vec![due, job(HOUR, "y")]).await;
    let consumed = |config: &mut dq_redis::RedissonConfig| {
        config.consumed_by_java.insert(queue.clone());
    };
    let _transferring = open_with(&fixture.redis, consumed).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((fixture.len("ZCARD", TIMEOUT), fixture.len("LLEN", DESTINATION)), (2, 0));
    fixture.backend.operate(Operation::Resume { queue: &queue }).await.unwrap();
    let mut java = fixture.redis.connect();
    let waiting = tokio::task::spawn_blocking(move || java.command(&["BLPOP", DESTINATION, "0"]));
    assert_eq!(waiting.await.unwrap().list()[1].text(), "x");
    assert_eq!(fixture.len("ZCARD", TIMEOUT), 1);
}
