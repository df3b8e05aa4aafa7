//! Java's target list: what lies there is due, and whoever takes it has it.

use std::time::Duration;

use dq_core::{Due, JobState, Operation, Verdict};

use crate::rig::{LATER, ORDER, Rig, TARGET, TIMEOUT, job, open, queue};

/// What does not happen within this time does not happen.
const BOUND: Duration = Duration::from_secs(10);

#[tokio::test]
async fn what_java_puts_there_directly_wakes_us() {
    let rig = Rig::with("").await;
    let mut wakeups = rig.backend.listen(&[queue()]).await.unwrap();
    // The connection that peeks is on its way; it sees what is there already, too.
    rig.redis.command(&["RPUSH", TARGET, "direct"]);
    loop {
        tokio::time::timeout(BOUND, wakeups.next()).await.expect("a hint by the peek");
        let jobs = rig.drain(10).await;
        if let [job] = &jobs[..] {
            assert_eq!(job.job.payload, "direct");
            break;
        }
    }
    assert_eq!(rig.backend.stats(&[queue()]).await.unwrap()[0].stored(), 0);
}

#[tokio::test]
async fn peeking_takes_nothing() {
    let rig = Rig::with("").await;
    let other = open(&rig.redis, "").await;
    let mut first = rig.backend.listen(&[queue()]).await.unwrap();
    let mut second = other.listen(&[queue()]).await.unwrap();
    rig.redis.command(&["RPUSH", TARGET, "a", "b"]);
    tokio::time::timeout(BOUND, first.next()).await.unwrap();
    tokio::time::timeout(BOUND, second.next()).await.unwrap();
    // All connections break in the middle of peeking; the list is as it was.
    rig.redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let list = rig.redis.command(&["LRANGE", TARGET, "0", "-1"]);
    let left: Vec<String> = list.list().iter().map(dq_servers::Reply::text).collect();
    assert_eq!(left, ["a", "b"]);
}

#[tokio::test]
async fn listed_jobs_count_as_ready_and_live_like_others() {
    let rig = Rig::with("").await;
    rig.redis.command(&["RPUSH", TARGET, "a", "b", "c"]);
    let stats = &rig.backend.stats(&[queue()]).await.unwrap()[0];
    assert_eq!((stats.ready, stats.scheduled, stats.next_due.is_some()), (3, 0, true));
    let jobs = rig.claim(2).await;
    assert_eq!([&jobs[0].job.payload, &jobs[1].job.payload], ["a", "b"]);
    assert_ne!(jobs[0].job.id, jobs[1].job.id);
    // A failed one is retried here, where no Java client can take it.
    let settlement =
        dq_core::Settlement { lease: jobs[0].lease(), verdict: Verdict::Retry(Due::NOW) };
    rig.backend.settle(&[settlement]).await.unwrap();
    assert_eq!(rig.len("LLEN", TARGET), 1);
    let again = rig.claim(10).await;
    let retried = again.iter().find(|job| job.job.id == jobs[0].job.id).unwrap();
    assert_eq!((retried.job.attempts, &retried.job.payload[..]), (1, &b"a"[..]));
}

#[tokio::test]
async fn fair_goes_by_the_list() {
    let rig = Rig::with("?fair_with_java=true&order_list=strict").await;
    // A Java client that has waited longer is served first.
    let mut java = rig.redis.connect();
    let waiting = tokio::task::spawn_blocking(move || java.command(&["BLPOP", TARGET, "0"]));
    let blocked = || rig.redis.command(&["INFO", "clients"]).text().contains("blocked_clients:1");
    while !blocked() {
        tokio::task::yield_now().await;
    }
    rig.backend.schedule(vec![job(Due::NOW, "1"), job(Due::NOW, "2")]).await.unwrap();
    let ours = rig.drain(10).await;
    let javas = waiting.await.unwrap().list()[1].text();
    assert_eq!(ours.len(), 1);
    let mut both = [javas, String::from_utf8(ours[0].job.payload.to_vec()).unwrap()];
    both.sort();
    assert_eq!(both, ["1", "2"]);
    assert_eq!(rig.len("LLEN", ORDER) + rig.len("ZCARD", TIMEOUT), 0);
}

#[tokio::test]
async fn relay_moves_for_java_and_takes_nothing() {
    let redis = dq_servers::Redis::start();
    let mut config = dq_redis::RedissonConfig::new(redis.url());
    config.relay.insert(queue());
    let keeper =
        dq_redis::RedissonBackend::connect(&config, &dq_core::config::Environment::default())
            .await
            .unwrap();
    let rig = Rig { backend: open(&redis, "").await, redis };
    let mut java = rig.redis.connect();
    let waiting = tokio::task::spawn_blocking(move || java.command(&["BLPOP", TARGET, "0"]));
    rig.backend.schedule(vec![job(Duration::from_millis(30), "x"), job(LATER, "y")]).await.unwrap();
    assert_eq!(waiting.await.unwrap().list()[1].text(), "x");
    assert_eq!(rig.len("ZCARD", TIMEOUT), 1);
    drop(keeper);
}

#[tokio::test]
async fn dead_jobs_keep_javas_bytes() {
    let rig = Rig::with("?codec=json").await;
    rig.java_offers(1, 1_000, b"{\"not\": \"json\"");
    assert!(rig.claim(10).await.is_empty(), "no handler could read it");
    let queue = queue();
    let dead =
        dq_core::BrowseParams { queue: &queue, state: JobState::Dead, after: None, limit: 9 };
    let page = rig.backend.browse(dead).await.unwrap();
    assert_eq!(page.jobs[0].job.payload, "{\"not\": \"json\"");
    let (reason, _) = page.jobs[0].dead.clone().unwrap();
    assert_eq!(reason.kind, dq_core::DeadKind::Undecodable);
}

#[tokio::test]
async fn fair_moves_what_is_wanted_and_nothing_of_a_paused_queue() {
    let rig = Rig::with("?fair_with_java=true").await;
    rig.backend.schedule((0..700).map(|_| job(Due::NOW, "x")).collect()).await.unwrap();
    assert_eq!(rig.claim(3).await.len(), 3);
    assert_eq!((rig.len("ZCARD", TIMEOUT), rig.len("LLEN", TARGET)), (697, 0));
    assert_eq!(rig.claim(650).await.len(), 650, "as many as are wanted");
    let queue = queue();
    rig.backend.operate(Operation::Pause { queue: &queue }).await.unwrap();
    assert!(rig.claim(10).await.is_empty());
    let other = dq_core::QueueName::new("other").unwrap();
    rig.backend
        .schedule(vec![dq_core::NewJob { queue: other.clone(), ..job(Due::NOW, "y") }])
        .await
        .unwrap();
    let wants = [&queue, &other].map(|queue| dq_core::Want {
        queue: queue.clone(),
        max: 9,
        lease_for: LATER,
    });
    let params = dq_core::ClaimParams { wants: &wants, limit: 9, worker: "test" };
    assert_eq!(rig.backend.claim(params).await.unwrap().jobs.len(), 1);
    assert_eq!((rig.len("ZCARD", TIMEOUT), rig.len("LLEN", TARGET)), (47, 0));
    rig.backend.operate(Operation::Resume { queue: &queue }).await.unwrap();
    assert_eq!(rig.claim(100).await.len(), 47);
}
