//! A RabbitMQ cluster.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::rabbitmq::{PATIENCE, RabbitMq};

/// How many nodes run, and which are cut off, as a node sees it.
const WELL: &str = "{length(rabbit_nodes:all_running()), rabbit_node_monitor:partitions()}";

/// How long a cluster may take to see by itself that none is cut off any more.
const RECOVERY: Duration = Duration::from_secs(10);

/// Several nodes that share users, virtual hosts and queues. Dropping it ends them.
#[derive(Debug)]
pub struct RabbitCluster {
    nodes: Vec<RabbitMq>,
    /// The places of those that are cut off.
    apart: Mutex<Vec<usize>>,
}

impl RabbitCluster {
    /// A cluster of that many nodes; when this returns, each of them says that all are running.
    /// For one with settings, see [`RabbitOptions::start_cluster`](crate::RabbitOptions).
    pub fn start(nodes: usize) -> Self {
        RabbitMq::options().start_cluster(nodes)
    }

    pub(super) fn of(nodes: Vec<RabbitMq>) -> Self {
        Self { nodes, apart: Mutex::default() }
    }

    /// The nodes. Each can be killed, stopped, frozen and started again.
    pub fn nodes(&self) -> &[RabbitMq] {
        &self.nodes
    }

    /// The URLs of the nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RabbitMq::url).collect()
    }

    /// The place of the node where the leader of a queue is, as `asked` knows it. Waits while it
    /// knows of none that answers, as in an election. Panics after two minutes.
    pub fn leader(&self, asked: &RabbitMq, vhost: &str, queue: &str) -> usize {
        // The member at hand is asked, if there is one: what the queue's record says of its leader
        // may still be the node that was cut off.
        let expression = format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup({{resource, <<\"{vhost}\">>, queue, \
             <<\"{queue}\">>}}), case amqqueue:get_pid(Q) of \
             {{Name, _}} -> {{ok, _, {{_, Node}}}} = ra:members({{Name, node()}}), Node; \
             Process -> node(Process) end"
        );
        let place = |leader: &str| {
            self.nodes.iter().position(|node| leader == format!("'{}'", node.node()))
        };
        self.until_some(asked, &expression, place)
    }

    /// Cuts the node at this place off from all others: they can neither keep nor make connections
    /// to each other until [`heal`](Self::heal). Clients reach it as before. Cut off one after the
    /// other, nodes are alone each.
    pub fn partition(&self, place: usize) {
        let node = &self.nodes[place];
        // Whoever shows another secret is refused, from either side.
        for other in self.names_but(place) {
            node.eval(&format!(
                "erlang:set_cookie({other}, 'cut off'), erlang:disconnect_node({other})"
            ));
        }
        self.until(node, "nodes()", "[]");
        for (_, other) in self.nodes.iter().enumerate().filter(|(at, _)| *at != place) {
            if other.process_id().is_some() {
                self.until(other, &format!("lists:member('{}', nodes())", node.node()), "false");
            }
        }
        let mut apart = self.apart();
        apart.retain(|known| *known != place);
        apart.push(place);
    }

    /// Lets those that were cut off and the others connect again, and does no more: unless
    /// `cluster_partition_handling` says what RabbitMQ itself shall do, it goes on with two truths
    /// about everything but the contents of quorum queues and streams.
    pub fn reconnect(&self) {
        let apart = std::mem::take(&mut *self.apart());
        for place in &apart {
            for other in self.names_but(*place) {
                let trust = format!("erlang:set_cookie({other}, erlang:get_cookie())");
                self.nodes[*place].eval(&trust);
            }
        }
        for place in apart {
            for other in self.names_but(place) {
                let connect = format!("net_kernel:connect_node({other})");
                self.until(&self.nodes[place], &connect, "true");
            }
        }
    }

    /// As [`reconnect`](Self::reconnect); then waits until all is [well](Self::until_well). Those that
    /// were cut off are made to forget what they believed meanwhile.
    pub fn heal(&self) {
        let apart = self.apart().clone();
        self.reconnect();
        apart.into_iter().for_each(|place| Self::forget(&self.nodes[place]));
        self.until_well();
    }

    /// Kills a node that was cut off, and starts it again, as its operator would have to; nothing is
    /// done if RabbitMQ does so itself.
    fn forget(node: &RabbitMq) {
        let handling = node.eval("application:get_env(rabbit, cluster_partition_handling)");
        if handling == "{ok,ignore}" {
            // Not in the orderly way, for which RabbitMQ would wait a minute if a client still
            // publishes to a queue that had no leader.
            node.kill();
            node.restart();
        }
    }

    /// Kills all nodes, like a power cut, and starts them again: together, since each waits for
    /// those that it knew to be running.
    pub fn crash(&self) {
        self.nodes.iter().for_each(RabbitMq::kill);
        self.nodes.iter().for_each(|node| node.process.start());
        self.nodes.iter().for_each(RabbitMq::must_be_ready);
        self.until_well();
    }

    /// Stops and starts the nodes one after the other, as for an update: the next one only when no
    /// queue would lose its majority by it.
    pub fn rolling_restart(&self) {
        for node in &self.nodes {
            let majority = "rabbit_upgrade_preparation:await_online_quorum_plus_one(5000)";
            self.until(node, majority, "true");
            node.stop();
            node.restart();
            self.until_well();
        }
    }

    /// Waits until each node says that all are running, knows of no partition, and answers, for
    /// instance after one was started again. One that was away too shortly for the others to see, or
    /// that had no time to answer them, is cut off for good: it is made to forget that.
    /// Panics after four minutes.
    pub fn until_well(&self) {
        let all = format!("{{{},[]}}", self.nodes.len());
        let deadline = Instant::now() + PATIENCE * 2;
        let mut patience = Instant::now() + RECOVERY;
        let look = |node| (node, RabbitMq::try_eval(node, WELL));
        let unwell = |(_, seen): &(_, Result<String, String>)| seen.as_ref() != Ok(&all);
        while let Some((node, seen)) = self.nodes.iter().map(look).find(unwell) {
            if Instant::now() > deadline {
                panic!("{}: {WELL} is {seen:?}; log:\n{}", node.node(), node.last_words());
            }
            if Instant::now() > patience && seen.is_ok_and(|seen| !seen.ends_with(",[]}")) {
                Self::forget(node);
                patience = Instant::now() + RECOVERY;
            }
            thread::sleep(Duration::from_millis(20));
        }
        // One that has paused is running before it takes connections.
        self.nodes.iter().for_each(RabbitMq::must_be_ready);
    }

    /// The names of all nodes but that at `place`, as Erlang writes them.
    fn names_but(&self, place: usize) -> impl Iterator<Item = String> {
        let others = self.nodes.iter().enumerate().filter(move |(at, _)| *at != place);
        others.map(|(_, node)| format!("'{}'", node.node()))
    }

    /// Waits until an expression has that value on a node.
    fn until(&self, node: &RabbitMq, expression: &str, value: &str) {
        self.until_some(node, expression, |seen| (seen == value).then_some(()));
    }

    /// Waits until the value of an expression on a node can be read.
    fn until_some<T>(
        &self,
        node: &RabbitMq,
        expression: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = node.try_eval(expression);
            if let Some(value) = seen.as_deref().ok().and_then(&read) {
                return value;
            }
            if Instant::now() > deadline {
                panic!("{}: {expression} is {seen:?}; log:\n{}", node.node(), node.last_words());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn apart(&self) -> MutexGuard<'_, Vec<usize>> {
        self.apart.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
