//! What all calls need: the connection, the names of the keys, the scripts.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use dq_core::{QueueName, Result, Timestamp};
use redis::Value;

use crate::clock::ServerClock;
use crate::connect::{Effect, Link};
use crate::error::unexpected;
use crate::keys;
use crate::reply::{self, Reply};
use crate::script::Scripts;
use crate::shards::Shards;
use crate::shards::lanes::Lanes;
use crate::shards::leases::Leases;

/// One store of jobs. Each file beside this one adds the calls of one topic.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) link: Arc<Link>,
    pub(crate) lanes: Lanes,
    pub(crate) scripts: Scripts,
    /// What is known of the server's time.
    pub(crate) clock: ServerClock,
    /// How many shards queues are to have.
    pub(crate) shards: Shards,
    pub(crate) leases: Leases,
    registered: Mutex<Registered>,
    /// Queues that could not be served when they were asked for last.
    pub(crate) refused: Mutex<HashSet<QueueName>>,
}

/// The queues that the server was told of, by one connection.
#[derive(Debug, Default)]
struct Registered {
    connection: u64,
    queues: HashSet<QueueName>,
}

impl Store {
    pub(crate) fn new(link: Arc<Link>, lanes: Lanes, scripts: Scripts, shards: Shards) -> Self {
        Self {
            clock: ServerClock::new(Arc::clone(link.clock())),
            link,
            lanes,
            scripts,
            shards,
            leases: Leases::default(),
            registered: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// The server's clock.
    pub(crate) async fn now(&self, operation: &'static str) -> Result<Timestamp> {
        // The nodes of a cluster have a clock each: that of the node with our keys counts.
        let home = keys::slot(self.lanes.naming.queues().as_bytes());
        let sent = self.clock.moment();
        let answer = self.link.run_at(home, operation, &redis::cmd("TIME")).await?;
        let read = |answer| {
            let mut reply = Reply::new(answer)?;
            Some(reply.number()? * 1000 + reply.number()? / 1000)
        };
        let Some(now) = read(answer).map(Timestamp::from_millis) else {
            return unexpected(operation);
        };
        self.clock.hear(sent, now);
        Ok(now)
    }

    /// Notes that these queues exist, once each.
    pub(crate) async fn register<'a>(
        &self,
        operation: &'static str,
        queues: impl IntoIterator<Item = &'a QueueName>,
    ) -> Result<()> {
        // A server that was replaced or restored may have lost them.
        let connection = self.link.connections();
        let unknown: HashSet<&QueueName> = {
            let mut registered = self.registered();
            if registered.connection != connection {
                *registered = Registered { connection, queues: HashSet::new() };
            }
            queues.into_iter().filter(|queue| !registered.queues.contains(*queue)).collect()
        };
        if unknown.is_empty() {
            return Ok(());
        }
        let mut add = redis::cmd("SADD");
        add.arg(self.lanes.naming.queues());
        for queue in &unknown {
            add.arg(queue.as_str());
        }
        self.link.run(operation, Effect::None, &add).await?;
        self.registered().queues.extend(unknown.into_iter().cloned());
        Ok(())
    }

    /// All queues ever used, by name.
    pub(crate) async fn queues(&self, operation: &'static str) -> Result<Vec<QueueName>> {
        let mut members = redis::cmd("SMEMBERS");
        members.arg(self.lanes.naming.queues());
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

    fn registered(&self) -> std::sync::MutexGuard<'_, Registered> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
