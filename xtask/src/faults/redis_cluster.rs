//! A Redis cluster with a replica.

use std::time::{Duration, Instant};

use dq_servers::{Redis, RedisCluster};

use super::replication::{LIMIT, is_replica, primary_and_replica, replication, wait_until};
use crate::run::Result;

/// A key of the store, whose keys all have one slot.
const KEY: &str = "{dq}:";

/// When a failover that did not succeed is asked for again: Redis gives up after five seconds.
const AGAIN: Duration = Duration::from_secs(6);

/// A Redis cluster of three primaries, of which the one with the keys of the store has a replica.
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

    /// A node by its number, modulo how many there are.
    pub(super) fn node(&self, number: usize) -> &Redis {
        let nodes = self.cluster.nodes();
        nodes.get(number % (nodes.len() + 1)).unwrap_or(&self.replica)
    }

    /// Connects the replica to the cluster and to its primary.
    fn join(&self) {
        for node in self.cluster.nodes().iter().chain([&*self.replica]) {
            // Only failovers that are asked for; the primaries grant one in twice the node timeout.
            for setting in
                [["cluster-replica-no-failover", "yes"], ["cluster-node-timeout", "2500"]]
            {
                let set = node.command(&["CONFIG", "SET", setting[0], setting[1]]);
                assert!(set.is_ok(), "{setting:?} is refused: {set:?}");
            }
        }
        let owner = self.cluster.owner(KEY);
        let id = owner.command(&["CLUSTER", "MYID"]).text();
        let port = owner.port().to_string();
        let met = self.replica.command(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        assert!(met.is_ok(), "the replica cannot join: {met:?}");
        let joined = || {
            // An error until it knows the primary.
            self.replica.command(&["CLUSTER", "REPLICATE", &id]).is_ok()
                && is_replica(&self.replica)
        };
        assert!(wait_until(joined), "the replica has no primary; log:\n{}", self.replica.log());
    }

    /// Makes the replica the primary, and the primary its replica. Nothing is lost: the primary stops
    /// writes until the replica has all.
    pub(super) fn fail_over(&self) -> Result {
        let [primary, replica] = primary_and_replica(self.cluster.owner(KEY), &self.replica);
        let mut asked: Option<Instant> = None;
        let done = || {
            if is_replica(primary) && replication(replica).contains("role:master") {
                return true;
            }
            if asked.is_none_or(|asked| asked.elapsed() > AGAIN) {
                // An error while the link to the primary is down; asked again.
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
