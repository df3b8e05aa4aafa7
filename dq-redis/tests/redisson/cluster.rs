//! Queues in different cluster slots.

use std::time::Duration;

use dq_core::config::{Environment, backend_from_url};
use dq_core::{ClaimParams, Due, QueueName, Timestamp, Want};
use dq_servers::RedisCluster;

use crate::common::HOUR;
use crate::redisson::fixture::job;

#[tokio::test]
async fn a_claim_returns_the_due_jobs_of_all_slots_and_nothing_else() {
    let cluster = RedisCluster::start(3);
    let url = format!("redisson+cluster://{}", cluster.nodes()[0].address());
    let backend = backend_from_url(&url).unwrap().connect(&Environment::default()).await.unwrap();
    let names = ["a", "b", "c", "d"].map(|name| QueueName::new(name).unwrap());
    let put = async |name: &QueueName, due: Due| {
        let mut job = job(due, "x");
        job.queue = name.clone();
        backend.schedule(vec![job]).await.unwrap();
    };
    let claim = async |limit| {
        let want = |queue: &QueueName| Want::new(queue.clone(), 9, HOUR);
        let wants = names.clone().map(|name| want(&name));
        backend.claim(ClaimParams::new(&wants, limit, "test")).await.unwrap()
    };
    for name in &names {
        put(name, Due::After(HOUR)).await;
    }
    let none = claim(9).await;
    assert!(none.jobs.is_empty());
    let wait = none.next_due.unwrap().since(none.now);
    assert!(wait > HOUR / 2 && wait <= HOUR + Duration::from_secs(1), "{wait:?}");

    put(&names[1], Timestamp::from_millis(1_000).into()).await;
    put(&names[1], Timestamp::from_millis(2_000).into()).await;
    let owner = cluster.owner("c");
    owner.command(&["RPUSH", "c", "direct"]);
    let all = claim(9).await;
    let mut payloads: Vec<_> = all.jobs.iter().map(|leased| &leased.job.payload[..]).collect();
    payloads.sort();
    assert_eq!(payloads, [&b"direct"[..], b"x", b"x"]);
    assert!(all.next_due.unwrap() > all.now);
}
