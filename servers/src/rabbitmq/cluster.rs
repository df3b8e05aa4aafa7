//! A RabbitMQ cluster.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::rabbitmq::server::RabbitMq;
use crate::rabbitmq::tools::TIMEOUT;

/// Number of running nodes and list of partitioned nodes, as a node sees them.
const HEALTH: &str = "{length(rabbit_nodes:all_running()), rabbit_node_monitor:partitions()}";

/// Maximum time in which a cluster detects by itself that a partition has ended.
const RECOVERY_TIME: Duration = Duration::from_secs(10);

/// A RabbitMQ cluster: nodes that share users, virtual hosts and queues. Dropping it ends them.
#[derive(Debug)]
pub struct RabbitCluster {
    nodes: Vec<RabbitMq>,
    /// Indexes of the partitioned nodes.
    partitioned: Mutex<Vec<usize>>,
}

impl RabbitCluster {
    /// Starts a cluster with default settings; see
    /// [`RabbitOptions::start_cluster`](crate::RabbitOptions::start_cluster).
    pub fn start(nodes: usize) -> Self {
        RabbitMq::options().start_cluster(nodes)
    }

    pub(super) fn new(nodes: Vec<RabbitMq>) -> Self {
        Self { nodes, partitioned: Mutex::default() }
    }

    /// The nodes. Each can be killed, stopped, frozen and restarted.
    pub fn nodes(&self) -> &[RabbitMq] {
        &self.nodes
    }

    /// The URLs of the nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RabbitMq::url).collect()
    }

    /// The index of the node with the leader of a queue, as `node` sees it. Waits while there is no
    /// leader, as in an election. Panics after two minutes.
    pub fn leader(&self, node: &RabbitMq, vhost: &str, queue: &str) -> usize {
        // Asks the queue's Raft member on `node`: the queue's database record may still name a node
        // that was partitioned. A classic queue has one process instead of members.
        let expression = format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup({{resource, <<\"{vhost}\">>, queue, \
             <<\"{queue}\">>}}), case amqqueue:get_pid(Q) of \
             {{Name, _}} -> {{ok, _, {{_, Node}}}} = ra:members({{Name, node()}}), Node; \
             Process -> node(Process) end"
        );
        let index = |leader: &str| {
            self.nodes.iter().position(|node| leader == format!("'{}'", node.node()))
        };
        self.wait_for(node, &expression, index)
    }

    /// Separates a node from all others: they cannot connect to each other until
    /// [`heal`](Self::heal). Clients can still reach it. Nodes that are separated one after the
    /// other are separated from each other, too.
    pub fn partition(&self, index: usize) {
        let node = &self.nodes[index];
        // Nodes with different cookies refuse each other.
        for other in self.names_except(index) {
            node.eval(&format!(
                "erlang:set_cookie({other}, 'cut off'), erlang:disconnect_node({other})"
            ));
        }
        self.wait_for_value(node, "nodes()", "[]");
        for (_, other) in self.nodes.iter().enumerate().filter(|(other, _)| *other != index) {
            if other.process_id().is_some() {
                self.wait_for_value(
                    other,
                    &format!("lists:member('{}', nodes())", node.node()),
                    "false",
                );
            }
        }
        let mut partitioned = self.partitioned();
        partitioned.retain(|known| *known != index);
        partitioned.push(index);
    }

    /// Reconnects the partitioned nodes without restarting them. Unless
    /// `cluster_partition_handling` is set, each side keeps its own state of everything but quorum
    /// queues and streams.
    pub fn reconnect(&self) {
        let partitioned = std::mem::take(&mut *self.partitioned());
        for index in &partitioned {
            for other in self.names_except(*index) {
                let set_cookie = format!("erlang:set_cookie({other}, erlang:get_cookie())");
                self.nodes[*index].eval(&set_cookie);
            }
        }
        for index in partitioned {
            for other in self.names_except(index) {
                let connect = format!("net_kernel:connect_node({other})");
                self.wait_for_value(&self.nodes[index], &connect, "true");
            }
        }
    }

    /// Reconnects the partitioned nodes, restarts them so that they adopt the state of the others,
    /// and [waits until all nodes are healthy](Self::wait_until_healthy).
    pub fn heal(&self) {
        let partitioned = self.partitioned().clone();
        self.reconnect();
        partitioned.into_iter().for_each(|index| Self::reset_state(&self.nodes[index]));
        self.wait_until_healthy();
    }

    /// Restarts a node that was partitioned, as an operator must do, unless RabbitMQ does it by
    /// itself because of `cluster_partition_handling`.
    fn reset_state(node: &RabbitMq) {
        let handling = node.eval("application:get_env(rabbit, cluster_partition_handling)");
        if handling == "{ok,ignore}" {
            // Not by an orderly stop, which takes a minute if a client still publishes to a queue
            // that had no leader.
            node.kill();
            node.restart();
        }
    }

    /// Kills all nodes, which simulates a power loss, and restarts them at the same time, since
    /// each waits for those that were running.
    pub fn crash(&self) {
        self.nodes.iter().for_each(RabbitMq::kill);
        self.nodes.iter().for_each(|node| node.process.start());
        self.nodes.iter().for_each(RabbitMq::expect_ready);
        self.wait_until_healthy();
    }

    /// Restarts the nodes one after the other, as for an update. Each waits until no queue would
    /// lose its majority.
    pub fn rolling_restart(&self) {
        for node in &self.nodes {
            let majority = "rabbit_upgrade_preparation:await_online_quorum_plus_one(5000)";
            self.wait_for_value(node, majority, "true");
            node.stop();
            node.restart();
            self.wait_until_healthy();
        }
    }

    /// Waits until each node accepts clients, sees all others running and no partition, for
    /// instance after a restart. A node that still sees a partition after ten seconds (the others
    /// may not have noticed a short absence) is restarted. Panics after four minutes.
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
                Self::reset_state(node);
                recovery_deadline = Instant::now() + RECOVERY_TIME;
            }
            thread::sleep(Duration::from_millis(20));
        }
        // After `pause_minority` ends, a node counts as running before it accepts connections.
        self.nodes.iter().for_each(RabbitMq::expect_ready);
    }

    /// The names of all nodes except one, in Erlang syntax.
    fn names_except(&self, index: usize) -> impl Iterator<Item = String> {
        let others = self.nodes.iter().enumerate().filter(move |(other, _)| *other != index);
        others.map(|(_, node)| format!("'{}'", node.node()))
    }

    /// Waits until an expression has a value on a node.
    fn wait_for_value(&self, node: &RabbitMq, expression: &str, value: &str) {
        self.wait_for(node, expression, |seen| (seen == value).then_some(()));
    }

    /// Waits until `parse` accepts the value of an expression on a node.
    fn wait_for<T>(
        &self,
        node: &RabbitMq,
        expression: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let seen = node.try_eval(expression);
            if let Some(value) = seen.as_deref().ok().and_then(&parse) {
                return value;
            }
            if Instant::now() > deadline {
                panic!(
                    "{}: {expression} is {seen:?}; log:\n{}",
                    node.node(),
                    node.process.log_tail()
                );
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn partitioned(&self) -> MutexGuard<'_, Vec<usize>> {
        self.partitioned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
