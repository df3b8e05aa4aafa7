//! Subscriptions to `__keyevent@<db>__:expired`, which publishes the names of expired keys. A
//! cluster needs one per primary, because a node publishes only its own keys' events.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::Result;
use dq_core::sync::lock;
use futures_util::future::join_all;
use redis::Value;

use super::listener::ExpiryEvents;
use crate::connect::{Link, Source, Subscriber};
use crate::error::unexpected;
use crate::reply::Reply;

/// How often a cluster's primaries are read. Events of a new primary are missed until then.
const REFRESH: Duration = Duration::from_secs(10);

/// A call waits only briefly for connections, because events are only hints.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) type Node = (String, u16);

#[derive(Debug)]
pub(super) struct Subscriptions {
    link: Arc<Link>,
    events: Arc<ExpiryEvents>,
    channel: String,
    by_node: Mutex<HashMap<Node, Arc<Subscriber>>>,
}

impl Subscriptions {
    pub(super) async fn start(link: Arc<Link>, events: Arc<ExpiryEvents>) -> Self {
        let channel = format!("__keyevent@{}__:expired", link.server().address.database);
        let subscriptions = Self { link, events, channel, by_node: Mutex::default() };
        subscriptions.refresh().await;
        subscriptions
    }

    /// Subscribes at each unconnected node and waits up to [`CONNECT_TIMEOUT`].
    pub(super) async fn connect(&self) {
        let mut waiting: Vec<Arc<Subscriber>> = lock(&self.by_node).values().cloned().collect();
        waiting.retain(|subscriber| !subscriber.is_connected());
        let connects =
            waiting.iter().map(|subscriber| subscriber.subscribe(vec![self.channel.clone()]));
        tokio::time::timeout(CONNECT_TIMEOUT, join_all(connects)).await.ok();
    }

    pub(super) fn all_connected(&self) -> bool {
        let by_node = lock(&self.by_node);
        !by_node.is_empty() && by_node.values().all(|subscriber| subscriber.is_connected())
    }

    /// Connects; in a cluster, then reads its primaries every [`REFRESH`] and never returns.
    pub(super) async fn follow_primaries(&self) {
        self.connect().await;
        while self.link.server().is_cluster() {
            tokio::time::sleep(REFRESH).await;
            self.refresh().await;
            self.connect().await;
        }
    }

    pub(super) fn close(&self) {
        lock(&self.by_node).clear();
    }

    async fn refresh(&self) {
        let server = self.link.server();
        if !server.is_cluster() {
            let only = (server.address.shown(), 0);
            self.keep_subscribers(&[only], |_| Some(Source::Any(Arc::clone(server))));
        } else if let Some(primaries) = primaries(&self.link).await {
            self.keep_subscribers(&primaries, |(host, port)| {
                let node = server.node(host, *port);
                let failed = |error| tracing::warn!(%error, host, port, "Redis: a node of the cluster has an unusable address");
                node.map(|client| Source::Node(Box::new(client))).map_err(failed).ok()
            });
        }
    }

    /// Subscribes at these nodes, and ends all other subscriptions.
    fn keep_subscribers(&self, nodes: &[Node], source: impl Fn(&Node) -> Option<Source>) {
        let mut by_node = lock(&self.by_node);
        by_node.retain(|node, _| nodes.contains(node));
        for node in nodes {
            if !by_node.contains_key(node)
                && let Some(source) = source(node)
            {
                let subscriber = Subscriber::start(source, Arc::clone(&self.events) as _);
                by_node.insert(node.clone(), Arc::new(subscriber));
            }
        }
    }
}

/// `None` if the cluster cannot be asked or knows no primary.
pub(super) async fn primaries(link: &Link) -> Option<Vec<Node>> {
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("SLOTS");
    let answer = link.query(None, &slots).await.ok()?;
    let fallback = &link.server().address.hosts.first()?.0;
    let primaries = parse_slots(answer, fallback).ok()?;
    (!primaries.is_empty()).then_some(primaries)
}

/// Parses the reply to `CLUSTER SLOTS`: slot ranges, each with its nodes, the primary first. A node
/// without a host gets `fallback`; a node with an unknown host (`?`) is left out.
fn parse_slots(answer: Value, fallback: &str) -> Result<Vec<Node>> {
    let mut ranges = Reply::new(answer)?;
    let mut primaries = Vec::new();
    while !ranges.is_empty() {
        let mut range = ranges.list()?;
        let (_first_slot, _last_slot) = (range.number()?, range.number()?);
        let mut primary = range.list()?;
        let host = primary.bytes().unwrap_or_default();
        let host = str::from_utf8(&host).map_err(|_| unexpected())?;
        let port = u16::try_from(primary.number()?).map_err(|_| unexpected())?;
        let node = (if host.is_empty() { fallback } else { host }.to_owned(), port);
        if host != "?" && !primaries.contains(&node) {
            primaries.push(node);
        }
    }
    Ok(primaries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_primary_is_parsed_once() {
        let text = |text: &str| Value::BulkString(text.into());
        let range = |host, port| {
            let primary = Value::Array(vec![host, Value::Int(port), text("id")]);
            Value::Array(vec![Value::Int(0), Value::Int(1), primary])
        };
        let answer = Value::Array(vec![
            range(text("a"), 7000),
            range(Value::Nil, 7001),
            range(text("a"), 7000),
            range(text("?"), 7003),
        ]);
        let nodes = [("a".to_owned(), 7000), ("here".to_owned(), 7001)];
        assert_eq!(parse_slots(answer, "here").unwrap(), nodes);
    }
}
