//! Versions without limits are kept out of a queue as long as it has some.

use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{Backend, Due, Flow, NewJob, QueueName, Verdict};
use dq_redis::{RedisBackend, RedisConfig};
use dq_servers::Redis;
use dq_testkit::fixture;

use crate::common::{at_most, claim, declare, job, queue, settle};

fn format_of(server: &Redis, tag: &str) -> Option<String> {
    let stored = server.command(&["HMGET", &format!("{{{tag}}}:meta:q"), "format"]);
    let stored = &stored.list()[0];
    (!stored.is_nil()).then(|| stored.text())
}

async fn open(server: &Redis, shards: Option<u16>) -> RedisBackend {
    let mut config = RedisConfig::new(server.url());
    config.shards.extend(shards.map(|shards| (queue(), shards)));
    RedisBackend::connect(&config, &Environment::default()).await.unwrap()
}

#[tokio::test]
async fn a_limit_refuses_older_versions_as_long_as_it_is_there() {
    let server = Redis::start();
    let (backend, queue) = (open(&server, None).await, queue());
    assert!(!declare(&backend, &queue, Flow::UNLIMITED).await);
    assert_eq!(format_of(&server, "dq"), None, "a queue without limits is open to all versions");
    backend.schedule(vec![fixture::in_an_hour(job())]).await.unwrap();
    assert!(declare(&backend, &queue, at_most(1)).await);
    assert_eq!(format_of(&server, "dq").as_deref(), Some("2/2/1"));
    assert!(declare(&backend, &queue, Flow::UNLIMITED).await);
    assert_eq!(format_of(&server, "dq").as_deref(), Some("2/1/1"));

    // A later version's format is not lowered.
    server.command(&["HSET", "{dq}:meta:q", "format", "4/1/1"]);
    declare(&backend, &queue, at_most(1)).await;
    assert_eq!(format_of(&server, "dq").as_deref(), Some("4/2/1"));
    declare(&backend, &queue, Flow::UNLIMITED).await;
    assert_eq!(format_of(&server, "dq").as_deref(), Some("4/2/1"));
}

#[tokio::test]
async fn a_throttle_refuses_no_version() {
    let server = Redis::start();
    let (backend, queue) = (open(&server, None).await, queue());
    backend.schedule(vec![job()]).await.unwrap();
    let leased = claim(&backend, 1).await.jobs.remove(0);
    settle(&backend, &leased, Verdict::Throttle(Due::NOW)).await;
    assert_eq!(format_of(&server, "dq").as_deref(), Some("2/1/1"));
    declare(&backend, &queue, at_most(1)).await;
    let leased = claim(&backend, 1).await.jobs.remove(0);
    settle(&backend, &leased, Verdict::Throttle(Duration::from_secs(60).into())).await;
    assert_eq!(format_of(&server, "dq").as_deref(), Some("2/2/1"), "the limit still does");
}

#[tokio::test]
async fn a_limit_refuses_older_versions_in_every_shard_also_after_a_change_of_their_number() {
    let server = Redis::start();
    let queue = queue();
    let new = |queue: &QueueName| -> Vec<NewJob> {
        (0..20).map(|_| fixture::in_an_hour(fixture::job(queue.as_str()))).collect()
    };
    declare(&open(&server, None).await, &queue, at_most(1)).await;
    for shards in [2, 3] {
        let backend = open(&server, Some(shards)).await;
        backend.schedule(new(&queue)).await.unwrap();
        for shard in 0..shards {
            let format = format_of(&server, &format!("dq#{shards}.{shard}"));
            assert_eq!(format.as_deref(), Some("2/2/1"), "shard {shard} of {shards}");
        }
        crate::common::purge(&backend, &queue).await;
    }
}
