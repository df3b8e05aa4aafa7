//! A RabbitMQ cluster: partitions and rolling restarts.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{TIMEOUT, retry};
use crate::program::unpacked_programs;
use crate::rabbitmq::server::RabbitMq;

/// Running node count and partitioned nodes.
const HEALTH: &str = "{length(rabbit_nodes:all_running()), rabbit_node_monitor:partitions()}";

/// A cluster normally notices within this time that a partition has ended.
const RECOVERY_TIME: Duration = Duration::from_secs(10);

/// Waits until no other cluster runs on the machine, and locks a file: two clusters starve each
/// other on two processors, and their queues elect no leaders for minutes.
pub(super) fn take_turn() -> File {
    let dir = unpacked_programs();
    let lock = || {
        fs::create_dir_all(&dir)?;
        let file = File::create(dir.join("rabbitmq-cluster.lock"))?;
        file.lock()?;
        Ok(file)
    };
    lock().unwrap_or_else(|error: io::Error| panic!("no lock in {}: {error}", dir.display()))
}

/// A RabbitMQ cluster. Dropping it ends its nodes. One runs at a time: the next start waits.
#[derive(Debug)]
pub struct RabbitCluster {
    pub(super) nodes: Vec<RabbitMq>,
    /// Indexes of nodes that are separated from all others.
    pub(super) partitioned: Mutex<BTreeSet<usize>>,
    /// The last field, so that the nodes end first.
    pub(super) _turn: File,
}

impl RabbitCluster {
    /// Returns the nodes.
    pub fn nodes(&self) -> &[RabbitMq] {
        &self.nodes
    }

    /// Separates a node from all others until [`heal`](Self::heal).
    ///
    /// Clients can still reach it. Nodes that you separate are also apart from each other.
    pub fn partition(&self, index: usize) {
        let node = &self.nodes[index];
        // Nodes with different cookies reject each other.
        for other in self.others(index) {
            node.eval(&format!(
                "erlang:set_cookie('{0}', 'cut off'), erlang:disconnect_node('{0}')",
                other.node()
            ));
        }
        wait_for_value(node, "nodes()", "[]");
        for other in self.others(index).filter(|other| other.process_id().is_some()) {
            let is_connected = format!("lists:member('{}', nodes())", node.node());
            wait_for_value(other, &is_connected, "false");
        }
        self.partitioned.lock().unwrap().insert(index);
    }

    /// Reconnects and restarts the partitioned nodes, so that they adopt the others' state.
    pub fn heal(&self) {
        let partitioned = std::mem::take(&mut *self.partitioned.lock().unwrap());
        for &index in &partitioned {
            for other in self.others(index) {
                let other = other.node();
                self.nodes[index]
                    .eval(&format!("erlang:set_cookie('{other}', erlang:get_cookie())"));
            }
        }
        for &index in &partitioned {
            for other in self.others(index) {
                let connect = format!("net_kernel:connect_node('{}')", other.node());
                wait_for_value(&self.nodes[index], &connect, "true");
            }
        }
        partitioned.into_iter().for_each(|index| reset_state(&self.nodes[index]));
        self.wait_until_healthy();
    }

    /// Restarts the nodes one by one, as for an update, while each queue keeps its majority.
    pub fn rolling_restart(&self) {
        for node in &self.nodes {
            let majority = "rabbit_upgrade_preparation:await_online_quorum_plus_one(5000)";
            wait_for_value(node, majority, "true");
            node.stop();
            node.restart();
            self.wait_until_healthy();
        }
    }

    /// Waits until each node accepts clients, sees all others and no partition.
    ///
    /// Restarts a node that still sees a partition after ten seconds, because the others may have
    /// missed a short absence. Panics after four minutes.
    pub fn wait_until_healthy(&self) {
        let all = format!("{{{},[]}}", self.nodes.len());
        let deadline = Instant::now() + TIMEOUT * 2;
        let mut recovery_deadline = Instant::now() + RECOVERY_TIME;
        let health = |node| (node, RabbitMq::try_eval(node, HEALTH));
        let is_unhealthy = |(_, seen): &(_, Result<String, String>)| seen.as_ref() != Ok(&all);
        while let Some((node, seen)) = self.nodes.iter().map(health).find(is_unhealthy) {
            if Instant::now() > deadline {
                panic!("{}: {HEALTH} is {seen:?}; log:\n{}", node.node(), node.process.log_tail());
            }
            if Instant::now() > recovery_deadline && seen.is_ok_and(|seen| !seen.ends_with(",[]}"))
            {
                reset_state(node);
                recovery_deadline = Instant::now() + RECOVERY_TIME;
            }
            thread::sleep(Duration::from_millis(20));
        }
        // After `pause_minority` ends, a node counts as running before it accepts connections.
        for node in &self.nodes {
            node.wait_until_ready()
                .unwrap_or_else(|reason| panic!("RabbitMQ is not ready: {reason}"));
        }
    }

    fn others(&self, index: usize) -> impl Iterator<Item = &RabbitMq> {
        let others = self.nodes.iter().enumerate().filter(move |(other, _)| *other != index);
        others.map(|(_, node)| node)
    }
}

/// Restarts a node that has been apart, unless `cluster_partition_handling` makes RabbitMQ do it.
/// Otherwise each side keeps its own state, except for quorum queues and streams.
fn reset_state(node: &RabbitMq) {
    let handling = node.eval("application:get_env(rabbit, cluster_partition_handling)");
    if handling == "{ok,ignore}" {
        // An orderly stop takes a minute if a client still publishes to a queue that had no leader.
        node.kill();
        node.restart();
    }
}

fn wait_for_value(node: &RabbitMq, expression: &str, value: &str) {
    retry(|| {
        let seen = node.try_eval(expression);
        if seen.as_deref() == Ok(value) {
            return Ok(());
        }
        let log = node.process.log_tail();
        Err(format!("{}: {expression} is {seen:?}; log:\n{log}", node.node()))
    });
}
