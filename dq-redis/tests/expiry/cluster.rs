//! In a cluster each node tells its own subscribers which of its keys expire.

use std::collections::HashSet;

use dq_core::{Backend, Due};
use dq_redis::{Notifications, RedisExpiryConfig};
use dq_servers::RedisCluster;

use crate::rig::{FAR, alarm, claim, expire, hint, job, listen, open, queue, schedule};

#[tokio::test]
async fn alarms_of_every_node_are_heard() {
    let cluster = RedisCluster::start(3);
    let hosts: Vec<String> = cluster.nodes().iter().map(|node| node.address()).collect();
    let mut seen = HashSet::new();
    // The keys of a prefix live on one node: one prefix for each.
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
        let findings = backend.check().await;
        assert_eq!(backend.notifications(), Notifications::Working, "{findings:?}");

        let mut wakeups = listen(&backend, &queue()).await;
        expire(owner, &alarm(&prefix, FAR, &queue())).await;
        assert_eq!(hint(&mut wakeups).await, FAR, "{}", owner.address());
        schedule(&backend, job(&queue(), Due::NOW)).await;
        assert_eq!(claim(&backend).await.len(), 1);
        if seen.len() == cluster.nodes().len() {
            break;
        }
    }
    for node in cluster.nodes() {
        let letters = node.command(&["CONFIG", "GET", "notify-keyspace-events"]).list()[1].text();
        assert!(letters.contains('E') && letters.contains('x'), "{letters}");
    }
}
