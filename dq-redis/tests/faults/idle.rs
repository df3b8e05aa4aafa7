//! An idle runner sends few commands, and a closed or dropped backend has no connection.

use std::time::{Duration, Instant};

use dq_servers::{Redis, RedisCluster};

use crate::common::command_calls;
use crate::faults::fixture::{TestRunner, open, queue, wait_until};

/// A script counts as one command. The tests' own client sends none of these, except PING when the
/// server starts.
fn commands_sent(redis: &Redis) -> u64 {
    let by_client = ["eval", "evalsha", "sadd", "smembers", "subscribe", "ping"];
    let calls = command_calls(redis);
    by_client.iter().filter_map(|name| calls.get(*name)).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_runner_of_a_hundred_queues_sends_one_command_a_second() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    let names: Vec<String> = (0..100).map(|number| format!("IDLE_{number}")).collect();
    let _serving = TestRunner::start(&backend, &names).await;
    let subscribed = || redis.command(&["PUBSUB", "CHANNELS"]).list().len();
    wait_until("it listens", async || subscribed() == 101).await;
    let is_quiet = async |seconds| {
        let (began, before) = (Instant::now(), commands_sent(&redis));
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let (calls, seconds) = (commands_sent(&redis) - before, began.elapsed().as_secs_f64());
        // With no call, the runner had no time or does not sweep.
        calls >= 1 && calls as f64 <= seconds + 3.0
    };
    wait_until("the start is over", async || is_quiet(2).await).await;
    let quiet = is_quiet(12).await || is_quiet(12).await;
    assert!(quiet, "not one command a second");
}

fn connections(redis: &Redis) -> usize {
    redis.command(&["CLIENT", "LIST"]).text().lines().filter(|line| line.starts_with("id=")).count()
        - 1
}

#[tokio::test]
async fn a_closed_or_dropped_backend_leaves_no_connection() {
    let redis = Redis::start();
    let cluster = RedisCluster::start(3);
    let hosts: Vec<String> = cluster.nodes().iter().map(Redis::address).collect();
    let cluster_url = format!("redis+cluster://{}", hosts.join(","));
    let single = std::slice::from_ref(&redis);
    for (url, servers, close) in [
        (redis.url(), single, true),
        (redis.url(), single, false),
        (cluster_url, cluster.nodes(), true),
    ] {
        let open_connections = || servers.iter().map(connections).sum::<usize>();
        let backend = open(&url).await;
        let _wakeups = backend.listen(&[queue("q")], "test").await.unwrap();
        assert!(open_connections() > 1, "{url}: one for commands, one for messages");
        if close {
            backend.close().await.unwrap();
            wait_until("all have ended", async || open_connections() == 0).await;
        }
        drop(backend);
        wait_until("all have ended", async || open_connections() == 0).await;
    }
}
