//! In a cluster, each node publishes its own keys' events to its own subscribers.

use std::collections::HashSet;
use std::time::Duration;

use dq_core::Backend;
use dq_redis::RedisExpiryConfig;
use dq_servers::{Redis, RedisCluster};
use dq_testkit::fixture::{TIMEOUT, wait_until};

use crate::common::{claim, job, queue};
use crate::expiry::fixture::{
    FAR, expire, expiry_key, hint, listen, open, open_and_configure, schedule,
};

#[tokio::test]
async fn events_of_every_node_are_received() {
    let cluster = RedisCluster::start(3);
    let hosts: Vec<String> = cluster.nodes().iter().map(|node| node.address()).collect();
    let mut seen = HashSet::new();
    // A prefix's keys are all on one node, so each node gets its own prefix.
    for number in 0.. {
        let prefix = format!("p{number}");
        let owner = cluster.owner(&format!("{{{prefix}}}"));
        if !seen.insert(owner.port()) {
            continue;
        }
        let mut config = RedisExpiryConfig::new(format!("redis+cluster://{}", hosts.join(",")));
        config.prefix = prefix.clone();
        config.configure = true;
        let backend = open(&config).await;
        let mut wakeups = listen(&backend).await;
        expire(owner, &expiry_key(&prefix, FAR, "q")).await;
        assert_eq!(hint(&mut wakeups).await, FAR, "{}", owner.address());
        schedule(&backend, job()).await;
        assert_eq!(claim(&backend, 9).await.jobs.len(), 1);
        if seen.len() == cluster.nodes().len() {
            break;
        }
    }
    assert!(cluster.nodes().iter().all(is_configured));
}

fn is_configured(node: &Redis) -> bool {
    let letters = node.command(&["CONFIG", "GET", "notify-keyspace-events"]).list()[1].text();
    letters.contains('E') && letters.contains('x')
}

#[tokio::test]
async fn one_node_that_refuses_to_be_configured_does_not_keep_the_others_from_it() {
    let cluster = RedisCluster::start(3);
    let url = format!("redis+cluster://{}", cluster.nodes()[0].address());
    // Each in turn, because only nodes after the one that refuses could be left out.
    for refusing in cluster.nodes() {
        for node in cluster.nodes() {
            assert!(node.command(&["CONFIG", "SET", "notify-keyspace-events", ""]).is_ok());
        }
        let user = ["ACL", "SETUSER", "default"];
        assert!(refusing.command(&[&user[..], &["-config|set"]].concat()).is_ok());
        let _backend = open_and_configure(url.clone()).await;
        for node in cluster.nodes().iter().filter(|node| node.port() != refusing.port()) {
            wait_until("the node is configured", async || is_configured(node)).await;
        }
        assert!(!is_configured(refusing));
        assert!(refusing.command(&[&user[..], &["+@all"]].concat()).is_ok());
    }
}

#[tokio::test]
async fn events_of_a_new_node_are_received() {
    let cluster = RedisCluster::start(1);
    let first = &cluster.nodes()[0];
    let url = format!("redis+cluster://{}", first.address());
    let backend = open(&RedisExpiryConfig::new(url)).await;
    // The fixture's `listen` would wait for events, of which this node publishes none.
    let mut wakeups = backend.listen(&[queue()], "test").await.unwrap();

    let second = Redis::options().cluster().set("notify-keyspace-events", "Ex").start();
    let port = first.port().to_string();
    // With a higher epoch, its claim to the slot wins.
    for command in
        [&["CLUSTER", "SET-CONFIG-EPOCH", "9"][..], &["CLUSTER", "MEET", "127.0.0.1", &port]]
    {
        assert!(second.command(command).is_ok());
    }
    let slot = first.command(&["CLUSTER", "KEYSLOT", "{dq}"]).int().to_string();
    let id = second.command(&["CLUSTER", "MYID"]).text();
    // A node does not give away a slot that holds keys.
    first.command(&["DEL", "{dq}:format"]);
    let give = ["CLUSTER", "SETSLOT", &slot, "NODE", &id];
    for (node, command) in [(first, &give[..]), (&second, &give), (&second, &["SET", "{dq}:x", ""])]
    {
        wait_until("the second node gets the slot", async || node.command(command).is_ok()).await;
    }

    // The backend looks up the cluster's primaries every ten seconds.
    let received = async {
        loop {
            expire(&second, &expiry_key("dq", FAR, "q")).await;
            let hint = tokio::time::timeout(Duration::from_millis(100), wakeups.next()).await;
            if hint.is_ok_and(|hint| hint.due == FAR) {
                return;
            }
        }
    };
    tokio::time::timeout(TIMEOUT, received).await.expect("events of the second node are received");
}
