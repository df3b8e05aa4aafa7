//! Waiting for what Java puts into a target list directly, without taking it.
//!
//! `BLMOVE list list LEFT LEFT` waits until the list has an element, and puts that back where it
//! was, in one step. So it tells that there is something, takes nothing, and loses nothing if the
//! connection breaks, which `BLPOP` would. It occupies a connection of its own for each list.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dq_core::{Listeners, QueueName, Timestamp};
use redis::AsyncConnectionConfig;
use redis::aio::ConnectionLike;
use tokio_util::sync::CancellationToken;

use crate::connect::{Server, ServerClient};
use crate::keys::Partition;

/// How long one peek waits: long, since each is a command, and idle is to be cheap.
const WAIT: Duration = Duration::from_secs(600);

/// How long the answer of a peek may be late, or else the connection was cut without a word.
const GRACE: Duration = Duration::from_secs(10);

/// After an element was seen: who was told needs a moment to take it. The rest grows while the list is
/// found filled again and again, as that of a queue that is paused.
const FIRST_REST: Duration = Duration::from_millis(50);
const LONGEST_REST: Duration = Duration::from_secs(5);

/// After a failure.
const REPAIR: Duration = Duration::from_millis(500);

/// The lists that are watched.
#[derive(Debug)]
pub(super) struct Peeks {
    server: Arc<Server>,
    most: usize,
    watched: Mutex<HashSet<QueueName>>,
    end: CancellationToken,
}

impl Peeks {
    pub(super) fn new(server: Arc<Server>, most: usize) -> Self {
        Self { server, most, watched: Mutex::default(), end: CancellationToken::new() }
    }

    /// Watches the target list of this queue from now on, unless there are too many already.
    pub(super) fn watch(&self, lane: &Arc<Partition>, listeners: &Arc<Listeners>) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.contains(&lane.queue) || watched.len() >= self.most {
            return;
        }
        watched.insert(lane.queue.clone());
        let peek = Peek {
            server: Arc::clone(&self.server),
            lane: Arc::clone(lane),
            listeners: Arc::clone(listeners),
        };
        tokio::spawn(self.end.clone().run_until_cancelled_owned(peek.watch()));
    }

    /// Ends all waiting.
    pub(super) fn close(&self) {
        self.end.cancel();
    }
}

impl Drop for Peeks {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

struct Peek {
    server: Arc<Server>,
    lane: Arc<Partition>,
    listeners: Arc<Listeners>,
}

impl Peek {
    async fn watch(self) {
        loop {
            if let Err(error) = self.look().await {
                tracing::debug!(%error, queue = %self.lane.queue, "peek broke off");
            }
            tokio::time::sleep(REPAIR).await;
        }
    }

    /// Wakes whoever listens each time the list has an element, until the connection breaks.
    async fn look(&self) -> redis::RedisResult<()> {
        match self.server.client().await? {
            ServerClient::Single(client) => {
                let config = AsyncConnectionConfig::new().set_response_timeout(Some(WAIT + GRACE));
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                self.keep_looking(&mut connection.await?, WAIT).await
            }
            ServerClient::Cluster(client) => {
                // Connections of a cluster have one time-out for all commands.
                let wait = self.server.response_timeout / 2;
                self.keep_looking(&mut client.get_async_connection().await?, wait).await
            }
        }
    }

    async fn keep_looking(
        &self,
        connection: &mut impl ConnectionLike,
        wait: Duration,
    ) -> redis::RedisResult<()> {
        let mut command = redis::cmd("BLMOVE");
        command.arg(self.lane.target()).arg(self.lane.target()).arg("LEFT").arg("LEFT");
        command.arg(wait.as_secs_f64());
        let mut rest = FIRST_REST;
        loop {
            let asked = Instant::now();
            let seen: redis::Value = command.query_async(connection).await?;
            if seen == redis::Value::Nil {
                rest = FIRST_REST;
                continue;
            }
            self.listeners.wake(&self.lane.queue, Timestamp::EPOCH);
            // It was there when we asked: nobody has taken it since the last look.
            rest = if asked.elapsed() < FIRST_REST {
                (rest * 2).min(LONGEST_REST)
            } else {
                FIRST_REST
            };
            tokio::time::sleep(rest).await;
        }
    }
}
