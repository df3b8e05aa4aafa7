//! Wakes the runner when Java puts a payload into a destination list, by a transfer or by an offer
//! without a delay.
//!
//! `BLMOVE list list LEFT LEFT` blocks until the list has an element, and puts it back in the same
//! step. Unlike `BLPOP` it removes nothing, so a broken connection loses nothing. The command
//! blocks its connection, so each watched list needs its own.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dq_core::sync::lock;
use dq_core::{Listeners, QueueName, Timestamp};
use redis::aio::ConnectionLike;
use tokio_util::sync::CancellationToken;

use super::layout::destination_key;
use crate::connect::{Server, ServerClient, connect};
use crate::keys::Partition;

/// Maximum number of watched lists, because each needs a connection. The runner's sweep (a claim
/// without any hint) finds payloads in other lists once a second.
const MAX_WATCHED: usize = 16;

/// The timeout of one `BLMOVE`. It is long, so that an idle queue costs few commands.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(600);

/// How late a `BLMOVE` reply may be before the connection counts as lost.
const REPLY_GRACE: Duration = Duration::from_secs(10);

/// The pause after a wake-up. It doubles while the list keeps elements, as in a paused queue, up to
/// [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The pause after a connection failed.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Watches the destination lists of this process's queues.
#[derive(Debug)]
pub(super) struct DestinationWatch {
    server: Arc<Server>,
    watched: Mutex<HashSet<QueueName>>,
    end: CancellationToken,
}

impl DestinationWatch {
    pub(super) fn new(server: Arc<Server>) -> Self {
        Self { server, watched: Mutex::default(), end: CancellationToken::new() }
    }

    /// Watches the destination list of a queue. Does nothing once [`MAX_WATCHED`] lists are watched.
    pub(super) fn watch(&self, partition: &Arc<Partition>, listeners: &Arc<Listeners>) {
        let mut watched = lock(&self.watched);
        if watched.contains(&partition.queue) || watched.len() >= MAX_WATCHED {
            return;
        }
        watched.insert(partition.queue.clone());
        let watcher = ListWatcher {
            server: Arc::clone(&self.server),
            partition: Arc::clone(partition),
            listeners: Arc::clone(listeners),
        };
        tokio::spawn(self.end.clone().run_until_cancelled_owned(watcher.run()));
    }

    pub(super) fn close(&self) {
        self.end.cancel();
    }
}

impl Drop for DestinationWatch {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

struct ListWatcher {
    server: Arc<Server>,
    partition: Arc<Partition>,
    listeners: Arc<Listeners>,
}

impl ListWatcher {
    async fn run(self) {
        loop {
            if let Err(error) = self.connect_and_watch().await {
                tracing::debug!(%error, queue = %self.partition.queue, "Redisson: the connection that watches a destination list failed");
            }
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }

    async fn connect_and_watch(&self) -> redis::RedisResult<()> {
        match self.server.client().await? {
            ServerClient::Single(client) => {
                let response_timeout = BLOCK_TIMEOUT + REPLY_GRACE;
                let connection = connect(&client, self.server.connect_timeout(), response_timeout);
                self.watch(&mut connection.await?, BLOCK_TIMEOUT).await
            }
            ServerClient::Cluster(client) => {
                // A cluster connection has one response timeout for all commands: BLMOVE must end
                // before it.
                let block_timeout = self.server.response_timeout / 2;
                self.watch(&mut client.get_async_connection().await?, block_timeout).await
            }
        }
    }

    async fn watch(
        &self,
        connection: &mut impl ConnectionLike,
        block_timeout: Duration,
    ) -> redis::RedisResult<()> {
        let list = destination_key(&self.partition);
        let mut command = redis::cmd("BLMOVE");
        command.arg(list).arg(list).arg("LEFT").arg("LEFT").arg(block_timeout.as_secs_f64());
        let mut pause = FIRST_PAUSE;
        loop {
            let sent = Instant::now();
            let element: redis::Value = command.query_async(connection).await?;
            if element == redis::Value::Nil {
                pause = FIRST_PAUSE;
                continue;
            }
            self.listeners.wake(&self.partition.queue, Timestamp::EPOCH);
            // After an immediate reply, the element was there before: no runner has taken it yet.
            let was_there_before = sent.elapsed() < FIRST_PAUSE;
            pause = if was_there_before { (pause * 2).min(MAX_PAUSE) } else { FIRST_PAUSE };
            tokio::time::sleep(pause).await;
        }
    }
}
