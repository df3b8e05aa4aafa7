//! A Redis cluster with a replica.

use std::time::{Duration, Instant};

use dq_servers::{Redis, RedisCluster};

use super::replication::{
    LIMIT, expect_ok, is_replica, primary_and_replica, replication, wait_until,
};
use crate::run::Result;

/// Determines the store's slot: all its keys share one.
const KEY: &str = "{dq}:";

/// When to repeat a failed failover request: Redis gives up after five seconds.
const AGAIN: Duration = Duration::from_secs(6);

/// Three primaries; the one with the store's keys has a replica.
#[derive(Debug)]
pub(crate) struct Replicated {
    cluster: RedisCluster,
    replica: Box<Redis>,
}

impl Replicated {
    pub(super) fn start() -> Self {
        let cluster = RedisCluster::start(3);
        let replica = Box::new(Redis::options().cluster().start());
        let replicated = Self { cluster, replica };
        replicated.join();
        replicated
    }

    pub(super) fn url(&self) -> String {
        let nodes: Vec<String> = self.cluster.nodes().iter().map(Redis::address).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// `number` counts modulo the nodes.
    pub(super) fn node(&self, number: usize) -> &Redis {
        let nodes = self.cluster.nodes();
        nodes.get(number % (nodes.len() + 1)).unwrap_or(&self.replica)
    }

    fn join(&self) {
        for node in self.cluster.nodes().iter().chain([&*self.replica]) {
            // Allows only requested failovers. The primaries grant one per two node timeouts.
            expect_ok(node, &["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
            expect_ok(node, &["CONFIG", "SET", "cluster-node-timeout", "2500"]);
        }
        let owner = self.cluster.owner(KEY);
        let id = owner.command(&["CLUSTER", "MYID"]).text();
        let port = owner.port().to_string();
        expect_ok(&self.replica, &["CLUSTER", "MEET", "127.0.0.1", &port]);
        let joined = || {
            // Fails until the replica knows the primary.
            self.replica.command(&["CLUSTER", "REPLICATE", &id]).is_ok()
                && is_replica(&self.replica)
        };
        assert!(wait_until(joined), "the replica has no primary; log:\n{}", self.replica.log());
    }

    /// Swaps primary and replica. Loses nothing: the primary stops writes until the replica has
    /// caught up.
    pub(super) fn fail_over(&self) -> Result {
        let [primary, replica] = primary_and_replica(self.cluster.owner(KEY), &self.replica);
        let mut asked: Option<Instant> = None;
        let done = || {
            if is_replica(primary) && replication(replica).contains("role:master") {
                return true;
            }
            if asked.is_none_or(|asked| asked.elapsed() > AGAIN) {
                // Fails while the link to the primary is down, so it is repeated.
                replica.command(&["CLUSTER", "FAILOVER"]);
                asked = Some(Instant::now());
            }
            false
        };
        if wait_until(done) {
            return Ok(());
        }
        Err(format!("no failover within {} s; log:\n{}", LIMIT.as_secs(), replica.log()))
    }
}
