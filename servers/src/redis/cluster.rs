//! Redis Cluster.

use crate::process::retry;
use crate::redis::server::Redis;

const SLOTS: usize = 16_384;

/// Redis primaries that share all slots evenly. Dropping it ends them.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts a cluster and waits until each primary reports it as healthy.
    pub fn start(primaries: usize) -> Self {
        assert!((1..=SLOTS).contains(&primaries), "a cluster has 1 to {SLOTS} primaries");
        let nodes: Vec<Redis> =
            (0..primaries).map(|_| Redis::options().cluster().start()).collect();
        let cluster = Self { nodes };
        cluster.assign_slots();
        cluster.join_nodes();
        cluster.wait_until_healthy();
        cluster
    }

    /// Returns the primaries in slot order.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Returns the primary that got `key`'s slot at the start.
    pub fn owner(&self, key: &str) -> &Redis {
        let slot = self.nodes[0].command(&["CLUSTER", "KEYSLOT", key]).int();
        let mut nodes = self.nodes.iter().enumerate();
        let owner = nodes.find(|(index, _)| slot < self.first_slot(index + 1) as i64);
        owner.map_or(&self.nodes[0], |(_, node)| node)
    }

    /// Waits until each node reports `cluster_state:ok` and knows all others. Panics after 300 s.
    pub fn wait_until_healthy(&self) {
        let all = format!("cluster_known_nodes:{}\r\n", self.nodes.len());
        for node in &self.nodes {
            retry(|| {
                let info = node.command(&["CLUSTER", "INFO"]).text();
                let has_joined = info.contains("cluster_state:ok") && info.contains(&all);
                let reason = || format!("{} has not joined the cluster:\n{info}", node.address());
                has_joined.then_some(()).ok_or_else(reason)
            });
        }
    }

    fn assign_slots(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let slots = self.first_slot(index)..self.first_slot(index + 1);
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            let mut command = vec!["CLUSTER", "ADDSLOTS"];
            command.extend(slots.iter().map(String::as_str));
            // With different epochs, the nodes need not negotiate the slots.
            let epoch = (index + 1).to_string();
            for command in [&command[..], &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]] {
                let reply = node.command(command);
                assert!(reply.is_ok(), "{} refuses its slots: {reply:?}", node.address());
            }
        }
    }

    fn join_nodes(&self) {
        let port = self.nodes[0].port().to_string();
        for node in &self.nodes[1..] {
            let reply = node.command(&["CLUSTER", "MEET", "127.0.0.1", &port]);
            assert!(reply.is_ok(), "{} cannot join: {reply:?}", node.address());
        }
    }

    fn first_slot(&self, index: usize) -> usize {
        index * SLOTS / self.nodes.len()
    }
}
