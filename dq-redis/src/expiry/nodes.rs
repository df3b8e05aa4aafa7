//! Who is listened to: the server, or each primary of a cluster, since a node tells its own
//! subscribers only which of its keys expire.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::ears::{Ear, Ears};
use crate::connect::{Link, Source, Subscriber};
use crate::reply::Reply;

/// How often the primaries of a cluster are asked for. A new one is not heard before; timers go on.
const REFRESH: Duration = Duration::from_secs(10);

/// For a connection to be made.
const PATIENCE: Duration = Duration::from_secs(1);

/// Host and port.
pub(super) type Node = (String, u16);

/// The connections that listen. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Nodes {
    link: Arc<Link>,
    ears: Arc<Ears>,
    channel: String,
    /// By node; a server that is none of a cluster is the only one, whatever its name is.
    open: Mutex<HashMap<Node, Open>>,
}

#[derive(Debug, Clone)]
struct Open {
    subscriber: Arc<Subscriber>,
    ear: Arc<Ear>,
}

impl Nodes {
    /// Begins to listen.
    pub(super) async fn start(link: Arc<Link>, ears: Arc<Ears>) -> Self {
        let channel = format!("__keyevent@{}__:expired", link.server().address.database);
        let nodes = Self { link, ears, channel, open: Mutex::default() };
        nodes.refresh().await;
        nodes
    }

    /// Returns once each connection is there, or cannot be had at the moment. Nobody waits long for
    /// what is only hints.
    pub(super) async fn hear(&self) {
        let mut open: Vec<Open> = self.open().values().cloned().collect();
        open.retain(|open| !open.ear.is_up());
        let heard = open.iter().map(|open| open.subscriber.subscribe(vec![self.channel.clone()]));
        tokio::time::timeout(PATIENCE, join_all(heard)).await.ok();
    }

    /// Whether every connection is there.
    pub(super) fn all_up(&self) -> bool {
        let open = self.open();
        !open.is_empty() && open.values().all(|open| open.ear.is_up())
    }

    /// Keeps to the primaries of a cluster, whoever they are.
    pub(super) async fn follow(&self) {
        self.hear().await;
        while self.link.server().is_cluster() {
            tokio::time::sleep(REFRESH).await;
            self.refresh().await;
            self.hear().await;
        }
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        self.open().clear();
    }

    async fn refresh(&self) {
        let server = self.link.server();
        if !server.is_cluster() {
            let only = (server.address.shown(), 0);
            self.keep_to(&[only], |_| Some(Source::Any(Arc::clone(server))));
        } else if let Some(primaries) = primaries(&self.link).await {
            self.keep_to(&primaries, |(host, port)| {
                let node = server.node(host, *port);
                let failed = |error| tracing::warn!(%error, host, port, "Redis: no such node");
                node.map(|client| Source::Node(Box::new(client))).map_err(failed).ok()
            });
        }
    }

    /// Opens connections to these nodes and closes those to others.
    fn keep_to(&self, nodes: &[Node], source: impl Fn(&Node) -> Option<Source>) {
        let mut open = self.open();
        open.retain(|node, _| nodes.contains(node));
        for node in nodes {
            if !open.contains_key(node)
                && let Some(source) = source(node)
            {
                let ear = Arc::new(Ear::new(Arc::clone(&self.ears)));
                let subscriber = Arc::new(Subscriber::start(source, Arc::clone(&ear) as _));
                open.insert(node.clone(), Open { subscriber, ear });
            }
        }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<Node, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The primaries of a cluster; `None` if nobody tells.
pub(super) async fn primaries(link: &Link) -> Option<Vec<Node>> {
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("SLOTS");
    let answer = link.query(&slots).await.ok()?;
    let fallback = &link.server().address.hosts.first()?.0;
    let primaries = read(answer, fallback)?;
    (!primaries.is_empty()).then_some(primaries)
}

/// Reads ranges of slots, each with its nodes, the primary first. A node that does not know its own
/// name is at the host where the cluster was found.
fn read(answer: Value, fallback: &str) -> Option<Vec<Node>> {
    let mut ranges = Reply::new(answer)?;
    let mut primaries = Vec::new();
    while !ranges.is_empty() {
        let mut range = ranges.list()?;
        range.number()?;
        range.number()?;
        let mut primary = range.list()?;
        let host = primary.bytes().unwrap_or_default();
        let host = str::from_utf8(&host).ok()?;
        let port = u16::try_from(primary.number()?).ok()?;
        let node = (if host.is_empty() { fallback } else { host }.to_owned(), port);
        if host != "?" && !primaries.contains(&node) {
            primaries.push(node);
        }
    }
    Some(primaries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primaries_are_read_once_each() {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |host, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let range = |primary| {
            let replica = node(text("replica"), 1);
            Value::Array(vec![Value::Int(0), Value::Int(1), primary, replica])
        };
        let answer = Value::Array(vec![
            range(node(text("a"), 7000)),
            range(node(Value::Nil, 7001)),
            range(node(text("a"), 7000)),
            range(node(text(""), 7002)),
            range(node(text("?"), 7003)),
        ]);
        let nodes = [("a", 7000), ("here", 7001), ("here", 7002)];
        let nodes = nodes.map(|(host, port)| (host.to_owned(), port));
        assert_eq!(read(answer, "here").as_deref(), Some(&nodes[..]));
        assert_eq!(read(Value::Nil, "here"), None);
    }
}
