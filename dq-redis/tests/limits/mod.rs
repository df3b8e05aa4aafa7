//! Limits of queues: who is woken, and what happens to damaged limits. The behaviour suite tests
//! the rest.

mod groups;
mod lost;
mod runners;

use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{
    Backend, ClaimParams, Claimed, ErrorKind, QueueName, Settled, Verdict, Wakeups, Want,
};
use dq_redis::{RedisBackend, RedisConfig};
use dq_servers::Redis;
use dq_testkit::fixture::{TIMEOUT, assert_error, done_settlements, job, keyed, queue, stats};

use crate::common::{ForeignKey, HOUR, at_most, declare, settle};

async fn open(redis: &Redis) -> RedisBackend {
    let mut config = RedisConfig::new(redis.url());
    config.response_timeout = Duration::from_secs(60);
    RedisBackend::connect(&config, &Environment::default()).await.unwrap()
}

async fn claim_as(
    backend: &dyn Backend,
    worker: &str,
    queues: &[QueueName],
    max: usize,
) -> Claimed {
    let wants: Vec<Want> = queues.iter().map(|queue| Want::new(queue.clone(), max, HOUR)).collect();
    backend.claim(ClaimParams::new(&wants, 9, worker)).await.unwrap()
}

async fn next_hint(wakeups: &mut Wakeups) -> i64 {
    tokio::time::timeout(TIMEOUT, wakeups.next()).await.expect("a hint").due.as_millis()
}

/// Publishes a hint for all, and waits for it. Returns whether another one came before.
async fn was_woken(redis: &Redis, wakeups: &mut Wakeups) -> bool {
    // Hints are merged into the earliest. So each of these is far ahead, and earlier than the one
    // before.
    static LAST: AtomicI64 = AtomicI64::new(9_000_000_000_000);
    let last = LAST.fetch_sub(1, Ordering::Relaxed);
    redis.command(&["PUBLISH", "{dq}:wake:q", &last.to_string()]);
    loop {
        match next_hint(wakeups).await.cmp(&last) {
            Less => return true,
            Equal => return false,
            Greater => {}
        }
    }
}

/// Two workers wait for room in a queue with one lease; the first in line has joined first.
async fn two_wait_for_room(redis: &Redis, backend: &dyn Backend) -> (Claimed, [Wakeups; 2]) {
    let queues = [queue("q")];
    declare(backend, &queues[0], at_most(1)).await;
    backend.schedule((0..3).map(|_| job("q")).collect()).await.unwrap();
    let mut first = backend.listen(&queues, "first").await.unwrap();
    let mut second = backend.listen(&queues, "second worker").await.unwrap();
    // Skips the hints from the new subscription: this one is earlier than all.
    redis.command(&["PUBLISH", "{dq}:wake:q", "-1"]);
    for wakeups in [&mut first, &mut second] {
        while next_hint(wakeups).await != -1 {}
    }
    let running = claim_as(backend, "third", &queues, 1).await;
    assert_eq!(running.jobs.len(), 1);
    for worker in ["first", "second worker"] {
        claim_as(backend, worker, &queues, 1).await;
    }
    (running, [first, second])
}

#[tokio::test]
async fn a_lease_that_ends_in_a_full_queue_wakes_the_first_in_line() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let (running, [mut first, mut second]) = two_wait_for_room(&redis, &backend).await;
    settle(&backend, &running.jobs[0], Verdict::Done).await;
    assert!(was_woken(&redis, &mut first).await, "it has waited longest");
    assert!(!was_woken(&redis, &mut second).await, "there is room for one");
    let running = claim_as(&backend, "first", &[queue("q")], 1).await;
    settle(&backend, &running.jobs[0], Verdict::Done).await;
    assert!(was_woken(&redis, &mut second).await, "now it has waited longest");
    assert!(!was_woken(&redis, &mut first).await, "it has left the line");
}

#[tokio::test]
async fn expired_leases_of_a_full_queue_wake_one_waiting_claimer() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let (running, [mut first, mut second]) = two_wait_for_room(&redis, &backend).await;
    // Only the server's clock ends a lease, so the test moves its end.
    let handle = redis.command(&["ZRANGE", "{dq}:lease:q", "0", "0"]).list()[0].bytes().to_vec();
    redis.command_bytes(&[b"ZADD", b"{dq}:lease:q", b"1", &handle]);
    assert_eq!(stats(&backend, "q").await.running, 0, "any call ends expired leases");
    assert!(was_woken(&redis, &mut first).await, "it has waited longest");
    assert!(!was_woken(&redis, &mut second).await, "there is room for one");
    let again = claim_as(&backend, "first", &[queue("q")], 1).await;
    assert_eq!((again.jobs.len(), again.jobs[0].job.losses), (1, 1));
    let lost = backend.settle(&done_settlements(&running)).await.unwrap();
    assert_eq!(lost, [Settled::LostLease]);
    assert!(!was_woken(&redis, &mut second).await, "a lost lease makes no room");
}

#[tokio::test]
async fn room_wakes_claimers_also_for_jobs_of_other_shards() {
    let redis = Redis::start();
    let queues = [queue("q")];
    let mut config = RedisConfig::new(redis.url());
    config.shards.insert(queues[0].clone(), 50);
    let backend = RedisBackend::connect(&config, &Environment::default()).await.unwrap();
    declare(&backend, &queues[0], at_most(1)).await;
    backend.schedule(["a", "b"].map(|key| keyed("q", key)).to_vec()).await.unwrap();
    let mut wakeups = backend.listen(&queues, "idle").await.unwrap();
    redis.command(&["PUBLISH", "{dq}:wake:q", "-1"]);
    while next_hint(&mut wakeups).await != -1 {}
    let running = claim_as(&backend, "w", &queues, 1).await;
    settle(&backend, &running.jobs[0], Verdict::Done).await;
    assert!(was_woken(&redis, &mut wakeups).await, "the other job is due");
}

#[tokio::test]
async fn one_claim_ends_at_most_100_leases_in_all_shards() {
    let redis = Redis::start();
    let queues = [queue("q")];
    let mut config = RedisConfig::new(redis.url());
    config.shards.insert(queues[0].clone(), 4);
    let backend = RedisBackend::connect(&config, &Environment::default()).await.unwrap();
    backend.schedule((0..250).map(|_| job("q")).collect()).await.unwrap();
    let wants = [Want::new(queues[0].clone(), 250, HOUR)];
    let claimed = backend.claim(ClaimParams::new(&wants, 250, "w")).await.unwrap();
    assert_eq!(claimed.jobs.len(), 250);
    let leases = |shard| format!("{{dq#4.{shard}}}:lease:q");
    for shard in 0..4 {
        for handle in redis.command(&["ZRANGE", &leases(shard), "0", "-1"]).list() {
            redis.command_bytes(&[b"ZADD", leases(shard).as_bytes(), b"1", handle.bytes()]);
        }
    }
    for left in [150, 50, 0, 0] {
        let none = claim_as(&backend, "w", &queues, 0).await;
        assert!(none.next_due.is_some_and(|next| next <= none.now), "jobs are due");
        let rest: i64 = (0..4).map(|n| redis.command(&["ZCARD", &leases(n)]).int()).sum();
        assert_eq!(rest, left);
    }
}

#[tokio::test]
async fn a_claimer_that_is_gone_does_not_stay_in_line() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let (running, [mut first, mut second]) = two_wait_for_room(&redis, &backend).await;
    // As if it had not been seen for more than a minute.
    redis.command(&["ZINCRBY", "{dq}:line:q", "-65000", "sfirst"]);
    claim_as(&backend, "second worker", &[queue("q")], 1).await;
    settle(&backend, &running.jobs[0], Verdict::Done).await;
    assert!(was_woken(&redis, &mut second).await);
    assert!(!was_woken(&redis, &mut first).await);
}

#[tokio::test]
async fn a_full_queue_among_many_is_claimed_when_it_has_room() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    // More than a claim looks at without the index of queues.
    let queues: Vec<QueueName> = (0..20).map(|n| queue(&format!("q{n}"))).collect();
    let limited = &queues[7];
    declare(&backend, limited, at_most(1)).await;
    backend.schedule((0..2).map(|_| job(limited.as_str())).collect()).await.unwrap();
    let running = claim_as(&backend, "w", &queues, 1).await;
    assert_eq!(running.jobs.len(), 1);
    let full = claim_as(&backend, "w", &queues, 1).await;
    let lease_end = Some(running.jobs[0].leased_until);
    assert_eq!((full.jobs.len(), full.next_due), (0, lease_end), "the runner may sleep until then");
    settle(&backend, &running.jobs[0], Verdict::Done).await;
    assert_eq!(claim_as(&backend, "w", &queues, 1).await.jobs.len(), 1);
}

#[tokio::test]
async fn a_rate_among_many_queues_tells_when_it_opens() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let queues: Vec<QueueName> = (0..20).map(|n| queue(&format!("q{n}"))).collect();
    declare(&backend, &queues[7], "2/1h".parse().map(|rate| at_most(9).rate(rate)).unwrap()).await;
    backend.schedule((0..2).map(|_| job("q7")).collect()).await.unwrap();
    let claimed = claim_as(&backend, "w", &queues, 1).await;
    assert_eq!(claimed.jobs.len(), 1);
    let opens_at = stats(&backend, "q7").await.flow.opens_at;
    assert!(opens_at > Some(claimed.now) && claimed.next_due == opens_at, "{claimed:?}");
    assert_eq!(claim_as(&backend, "w", &queues, 1).await.next_due, opens_at);
}

#[tokio::test]
async fn damaged_limits_stop_their_queue_only() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let queues = [queue("q"), queue("well")];
    for queue in &queues {
        declare(&backend, queue, at_most(5)).await;
        backend.schedule(vec![job(queue.as_str())]).await.unwrap();
    }
    redis.command(&["HSET", "{dq}:flow:q", "declared", "no limits"]);
    let claimed = claim_as(&backend, "w", &queues, 1).await;
    let claimed: Vec<_> = claimed.jobs.iter().map(|leased| &leased.job.queue).collect();
    assert_eq!(claimed, [&queues[1]]);
    assert_eq!(stats(&backend, "q").await.flow.declared, at_most(0));
    declare(&backend, &queues[0], at_most(5)).await;
    assert_eq!(claim_as(&backend, "w", &queues, 1).await.jobs.len(), 1);
}

#[tokio::test]
async fn a_key_of_another_type_stops_its_queue_only() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let queues = [queue("q"), queue("well")];
    for kind in ["flow", "line"] {
        declare(&backend, &queues[0], at_most(1)).await;
        backend.schedule((0..2).map(|_| job("q")).collect()).await.unwrap();
        let running = claim_as(&backend, "w", &queues, 1).await;
        assert_eq!(running.jobs.len(), 1, "{kind}");
        let foreign = ForeignKey::replace(&redis, &format!("{{dq}}:{kind}:q"));
        backend.schedule(vec![job("well")]).await.unwrap();
        let served = claim_as(&backend, "w", &queues, 1).await;
        assert_eq!(served.jobs.len(), 1, "{kind}");
        backend.settle(&done_settlements(&served)).await.unwrap();
        let refused = backend.settle(&done_settlements(&running)).await;
        assert_error(refused, ErrorKind::Incompatible, &["WRONGTYPE"]);
        let findings = backend.check().await;
        assert!(findings.iter().any(|found| found.code == "redis.foreign-key"), "{findings:?}");
        foreign.restore();
        let settled = backend.settle(&done_settlements(&running)).await.unwrap();
        assert_eq!(settled, [Settled::Accepted], "it was not settled half way ({kind})");
        let rest = claim_as(&backend, "w", &queues, 1).await;
        assert_eq!(rest.jobs.len(), 1);
        backend.settle(&done_settlements(&rest)).await.unwrap();
    }
}
