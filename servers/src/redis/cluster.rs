//! A Redis cluster of primaries.

use std::thread;
use std::time::{Duration, Instant};

use crate::process::PATIENCE;
use crate::redis::Redis;

/// How many slots every cluster has.
const SLOTS: usize = 16_384;

/// Several primaries that share all slots evenly. Dropping it ends them.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// A cluster of that many primaries; when this returns, each of them says that the cluster is
    /// well.
    pub fn start(primaries: usize) -> Self {
        assert!((1..=SLOTS).contains(&primaries), "a cluster has 1 to {SLOTS} primaries");
        let nodes: Vec<Redis> =
            (0..primaries).map(|_| Redis::options().cluster().start()).collect();
        let cluster = Self { nodes };
        cluster.assign();
        cluster.meet();
        cluster.until_well();
        cluster
    }

    /// The primaries, in the order of their slots.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The URLs of the primaries.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::url).collect()
    }

    /// The primary that the slot of `key` was given to at the start.
    pub fn owner(&self, key: &str) -> &Redis {
        let slot = self.nodes[0].command(&["CLUSTER", "KEYSLOT", key]).int();
        let mut nodes = self.nodes.iter().enumerate();
        let owner = nodes.find(|(place, _)| slot < self.first_slot(place + 1) as i64);
        owner.map_or(&self.nodes[0], |(_, node)| node)
    }

    /// Waits until each node says `cluster_state:ok` and knows all others, for instance after one
    /// was started again. Panics after 30 s.
    pub fn until_well(&self) {
        let deadline = Instant::now() + PATIENCE;
        let all = format!("cluster_known_nodes:{}\r\n", self.nodes.len());
        for node in &self.nodes {
            loop {
                let info = node.command(&["CLUSTER", "INFO"]).text();
                if info.contains("cluster_state:ok") && info.contains(&all) {
                    break;
                }
                assert!(Instant::now() < deadline, "{} is in no cluster:\n{info}", node.address());
                thread::sleep(Duration::from_millis(10));
            }
        }
    }

    fn assign(&self) {
        for (place, node) in self.nodes.iter().enumerate() {
            let slots = self.first_slot(place)..self.first_slot(place + 1);
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            let mut command = vec!["CLUSTER", "ADDSLOTS"];
            command.extend(slots.iter().map(String::as_str));
            // Nodes with epochs of their own need not find out whose slots are newer.
            let epoch = (place + 1).to_string();
            for command in [&command[..], &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]] {
                let answer = node.command(command);
                assert!(answer.is_ok(), "{} takes no slots: {answer:?}", node.address());
            }
        }
    }

    /// Everyone meets the first, and hears of the others from it.
    fn meet(&self) {
        let port = self.nodes[0].port().to_string();
        for node in &self.nodes[1..] {
            let answer = node.command(&["CLUSTER", "MEET", "127.0.0.1", &port]);
            assert!(answer.is_ok(), "{} meets nobody: {answer:?}", node.address());
        }
    }

    fn first_slot(&self, place: usize) -> usize {
        place * SLOTS / self.nodes.len()
    }
}
