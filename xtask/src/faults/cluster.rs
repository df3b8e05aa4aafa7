//! Clusters.

use std::thread;
use std::time::{Duration, Instant};

use dq_servers::{RabbitCluster, Redis, RedisCluster};

use super::fault::Fault;
use crate::run::Result;

/// A key of the store, whose keys all have one slot.
const KEY: &str = "{dq}:";

/// How long a replica may take to become the primary, and the primary to follow it, on a slow machine.
const LIMIT: Duration = Duration::from_secs(120);
/// When a failover that did not succeed is asked for again: Redis gives up after five seconds.
const AGAIN: Duration = Duration::from_secs(6);

/// A store of several nodes.
#[derive(Debug)]
pub(crate) enum Cluster {
    Redis(Replicated),
    /// Three nodes.
    RabbitMq(RabbitCluster),
}

/// A Redis cluster of three primaries, of which the one with the keys of the store has a replica.
#[derive(Debug)]
pub(crate) struct Replicated {
    cluster: RedisCluster,
    replica: Box<Redis>,
}

impl Cluster {
    pub(super) fn redis() -> Self {
        let cluster = RedisCluster::start(3);
        let replica = Box::new(Redis::options().cluster().start());
        let replicated = Replicated { cluster, replica };
        replicated.join();
        Self::Redis(replicated)
    }

    pub(super) fn rabbitmq() -> Self {
        Self::RabbitMq(RabbitCluster::start(3))
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Redis(Replicated { cluster, .. }) => {
                let nodes: Vec<String> = cluster.nodes().iter().map(Redis::address).collect();
                format!("redis+cluster://{}", nodes.join(","))
            }
            Self::RabbitMq(cluster) => {
                let first = &cluster.nodes()[0];
                let nodes: Vec<String> =
                    cluster.nodes().iter().map(|node| node.address()).collect();
                first.url().replace(&first.address(), &nodes.join(","))
            }
        }
    }

    /// The faults beside those of processes.
    pub(super) fn faults(&self) -> &'static [Fault] {
        match self {
            // Redis replicates without waiting: a failover because a primary is gone may lose what
            // it has just acknowledged, as documented. One that is asked for loses nothing.
            Self::Redis(_) => &[Fault::FailOver, Fault::FreezeServer, Fault::WrongClock],
            Self::RabbitMq(_) => &[Fault::KillServer, Fault::FreezeServer, Fault::CutOff],
        }
    }

    /// Waits until what was declared is on the disk.
    pub(super) fn sync(&self) {
        if let Self::RabbitMq(cluster) = self {
            cluster.nodes().iter().for_each(dq_servers::RabbitMq::sync_declarations);
        }
    }

    /// Makes the replica the primary, and the primary its replica.
    pub(super) fn fail_over(&self) -> Result {
        match self {
            Self::Redis(replicated) => replicated.fail_over(),
            Self::RabbitMq(_) => Ok(()),
        }
    }
}

impl Replicated {
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

    fn fail_over(&self) -> Result {
        let (owner, other) = (self.cluster.owner(KEY), &*self.replica);
        let (primary, replica) =
            if role(owner).contains("role:slave") { (other, owner) } else { (owner, other) };
        let mut asked: Option<Instant> = None;
        let done = || {
            if is_replica(primary) && role(replica).contains("role:master") {
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

/// Whether a node follows a primary, and its link is up.
fn is_replica(node: &Redis) -> bool {
    let role = role(node);
    role.contains("role:slave") && role.contains("master_link_status:up")
}

fn role(node: &Redis) -> String {
    node.command(&["INFO", "replication"]).text()
}

/// Whether a condition comes true within the limit.
fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < LIMIT {
        if condition() {
            return true;
        }
        thread::sleep(Duration::from_millis(50));
    }
    false
}
