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
use tokio_util::sync::{CancellationToken, DropGuard};

use super::layout::destination_key;
use crate::connect::{Server, ServerClient, connect};
use crate::keys::Partition;

/// Maximum number of watched lists, because each needs a connection. The runner's sweep (a claim
/// without any hint) finds payloads in other lists once a second.
const MAX_WATCHED: usize = 16;

/// Long, so that an idle queue costs few commands.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(600);

/// How late a `BLMOVE` reply may be before the connection counts as lost.
const REPLY_GRACE: Duration = Duration::from_secs(10);

const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The pause doubles while the list keeps elements, as in a paused queue.
const MAX_PAUSE: Duration = Duration::from_secs(5);

const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// The watch ends when this is dropped.
#[derive(Debug)]
pub(super) struct DestinationWatch {
    server: Arc<Server>,
    listeners: Arc<Listeners>,
    watched: Mutex<HashSet<QueueName>>,
    end: DropGuard,
}

impl DestinationWatch {
    pub(super) fn new(server: Arc<Server>, listeners: Arc<Listeners>) -> Self {
        let end = CancellationToken::new().drop_guard();
        Self { server, listeners, watched: Mutex::default(), end }
    }

    /// Does nothing once [`MAX_WATCHED`] lists are watched.
    pub(super) fn watch(&self, partition: Arc<Partition>) {
        let mut watched = lock(&self.watched);
        if watched.len() < MAX_WATCHED && watched.insert(partition.queue.clone()) {
            let (server, listeners) = (Arc::clone(&self.server), Arc::clone(&self.listeners));
            let task = async move {
                loop {
                    if let Err(error) = watch_until_lost(&server, &partition, &listeners).await {
                        tracing::debug!(%error, queue = %partition.queue, "Redisson: the connection that watches a destination list failed");
                    }
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                }
            };
            tokio::spawn(self.end.token().clone().run_until_cancelled_owned(task));
        }
    }

    pub(super) fn close(&self) {
        self.end.token().cancel();
    }
}

async fn watch_until_lost(
    server: &Server,
    partition: &Partition,
    listeners: &Listeners,
) -> redis::RedisResult<()> {
    match server.client().await? {
        ServerClient::Single(client) => {
            let reply_timeout = BLOCK_TIMEOUT + REPLY_GRACE;
            let mut connection = connect(&client, server.connect_timeout, reply_timeout).await?;
            watch(&mut connection, partition, listeners, BLOCK_TIMEOUT).await
        }
        ServerClient::Cluster(client) => {
            // A cluster connection has one response timeout for all commands: BLMOVE must end
            // before it.
            let block_timeout = server.response_timeout / 2;
            let mut connection = client.get_async_connection().await?;
            watch(&mut connection, partition, listeners, block_timeout).await
        }
    }
}

async fn watch(
    connection: &mut impl ConnectionLike,
    partition: &Partition,
    listeners: &Listeners,
    block_timeout: Duration,
) -> redis::RedisResult<()> {
    let list = destination_key(partition);
    let mut blmove = redis::cmd("BLMOVE");
    blmove.arg(&[list, list, "LEFT", "LEFT"]).arg(block_timeout.as_secs_f64());
    let mut pause = FIRST_PAUSE;
    loop {
        let sent = Instant::now();
        let element: redis::Value = blmove.query_async(connection).await?;
        if element == redis::Value::Nil {
            pause = FIRST_PAUSE;
            continue;
        }
        listeners.wake(&partition.queue, Timestamp::EPOCH);
        // After an immediate reply the element was there before: no runner has taken it yet.
        pause = if sent.elapsed() < FIRST_PAUSE { (pause * 2).min(MAX_PAUSE) } else { FIRST_PAUSE };
        tokio::time::sleep(pause).await;
    }
}
