//! The state that all calls share: connection, key names, scripts and caches.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{Entropy, HistoryLimits, QueueName, Result, Timestamp};
use redis::Value;

use crate::args::history_args;
use crate::clock::ServerClock;
use crate::connect::{Effect, Link};
use crate::error::unexpected;
use crate::key_layout::KeyLayout;
use crate::keys::{self, Partition};
use crate::reply::{self, Reply};
use crate::script::Scripts;
use crate::shards::ShardSettings;
use crate::shards::leases::LeaseShards;
use crate::shards::partitions::Partitions;

/// Each call has its own file: `schedule.rs`, `claim.rs`, `settle.rs`, …
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) link: Arc<Link>,
    pub(crate) partitions: Partitions,
    pub(crate) scripts: Scripts,
    pub(crate) clock: ServerClock,
    pub(crate) entropy: Arc<Entropy>,
    pub(crate) shard_settings: ShardSettings,
    pub(crate) history: HistoryLimits,
    /// Sharded queues: `None` if they may have pinned ids, else when that was looked up. See
    /// `pins.rs`.
    pub(crate) marked_queues: Mutex<HashMap<QueueName, Option<Duration>>>,
    pub(crate) leases: LeaseShards,
    /// When and on which connection a claim last looked at all queues; see `queue_index.rs`.
    pub(crate) looked_at_all: Mutex<Option<(u64, Duration)>>,
    /// Held while a queue's shard count is looked up or changed.
    pub(crate) resolving: tokio::sync::Mutex<()>,
    registered: Mutex<Registered>,
    /// Queues refused by the last claim, logged once.
    pub(crate) refused: Mutex<HashSet<QueueName>>,
}

#[derive(Debug, Default)]
struct Registered {
    connection: u64,
    queues: HashSet<QueueName>,
}

impl Store {
    pub(crate) fn new(
        link: Arc<Link>,
        layout: Box<dyn KeyLayout>,
        scripts: Scripts,
        shard_settings: ShardSettings,
        entropy: Arc<Entropy>,
        history: HistoryLimits,
    ) -> Self {
        Self {
            clock: ServerClock::new(Arc::clone(link.clock())),
            entropy,
            link,
            partitions: Partitions::new(layout),
            scripts,
            shard_settings,
            history,
            marked_queues: Mutex::default(),
            leases: LeaseShards::default(),
            looked_at_all: Mutex::default(),
            resolving: tokio::sync::Mutex::default(),
            registered: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    pub(crate) fn history_args(&self, partition: &Partition) -> (u32, u64) {
        history_args(self.history.of(&partition.queue), partition)
    }

    pub(crate) async fn now(&self, operation: &'static str) -> Result<Timestamp> {
        let slot = keys::slot(self.partitions.layout.queues().as_bytes());
        let sent_at = self.clock.elapsed();
        let answer = self.link.run_at(slot, operation, &redis::cmd("TIME")).await?;
        let read = |answer| {
            let mut reply = Reply::new(answer)?;
            Some(reply.number()? * 1000 + reply.number()? / 1000)
        };
        let Some(now) = read(answer).map(Timestamp::from_millis) else {
            return unexpected(operation);
        };
        self.clock.observe(sent_at, now);
        Ok(now)
    }

    /// Adds queues to the set of all queues, once per connection.
    pub(crate) async fn register<'a>(
        &self,
        operation: &'static str,
        queues: impl IntoIterator<Item = &'a QueueName>,
    ) -> Result<()> {
        // A new connection may lead to a server that was replaced or restored.
        let connection = self.link.connections();
        let unknown: HashSet<&QueueName> = {
            let mut registered = lock(&self.registered);
            if registered.connection != connection {
                *registered = Registered { connection, queues: HashSet::new() };
            }
            queues.into_iter().filter(|queue| !registered.queues.contains(*queue)).collect()
        };
        if unknown.is_empty() {
            return Ok(());
        }
        let mut add = redis::cmd("SADD");
        add.arg(self.partitions.layout.queues());
        for queue in &unknown {
            add.arg(queue.as_str());
        }
        self.link.run(operation, Effect::None, &add).await?;
        let mut registered = lock(&self.registered);
        // Another call may have seen a newer connection.
        if registered.connection == connection {
            registered.queues.extend(unknown.into_iter().cloned());
        }
        Ok(())
    }

    /// Like `register`, even if this connection added the queue before.
    pub(crate) async fn register_again(
        &self,
        operation: &'static str,
        queue: &QueueName,
    ) -> Result<()> {
        lock(&self.registered).queues.remove(queue);
        self.register(operation, [queue]).await
    }

    pub(crate) async fn queues(&self, operation: &'static str) -> Result<Vec<QueueName>> {
        let mut members = redis::cmd("SMEMBERS");
        members.arg(self.partitions.layout.queues());
        let Value::Array(members) = self.link.run(operation, Effect::None, &members).await? else {
            return unexpected(operation);
        };
        let name = |member| {
            let member = reply::bytes(member)?;
            QueueName::new(str::from_utf8(&member).ok()?).ok()
        };
        let mut queues: Vec<QueueName> = members.into_iter().filter_map(name).collect();
        queues.sort();
        Ok(queues)
    }
}
