//! Waiting for what Java puts into a target list directly, without taking it.
//!
//! `BLMOVE list list LEFT LEFT` waits until the list has an element, and puts that back where it
//! was, in one step. So it tells that there is something, takes nothing, and loses nothing if the
//! connection breaks, which `BLPOP` would. It occupies a connection of its own for each list.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dq_core::{Listeners, QueueName, Timestamp};
use redis::AsyncConnectionConfig;
use tokio_util::sync::CancellationToken;

use crate::connect::{Server, Target};
use crate::keys::Lane;

/// How long one peek waits. The server notices a client that is gone at the end only.
const WAIT: Duration = Duration::from_secs(30);

/// After an element was seen, and after a failure: who was told needs a moment to take it, and
/// until then the next peek would see it again at once.
const REST: Duration = Duration::from_millis(250);

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
    pub(super) fn watch(&self, lane: &Arc<Lane>, listeners: &Arc<Listeners>) {
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
    lane: Arc<Lane>,
    listeners: Arc<Listeners>,
}

impl Peek {
    async fn watch(self) {
        loop {
            match self.look().await {
                Ok(()) => {}
                Err(error) => tracing::debug!(%error, queue = %self.lane.queue, "peek broke off"),
            }
            tokio::time::sleep(REST).await;
        }
    }

    /// Wakes whoever listens each time the list has an element, until the connection breaks.
    async fn look(&self) -> redis::RedisResult<()> {
        // No time-out for the answer: that is the point.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = match self.server.target().await? {
            Target::One(client) => client,
            Target::Cluster(client) => {
                let mut cluster = client.get_async_connection().await?;
                loop {
                    self.peek(&mut cluster).await?;
                }
            }
        };
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        loop {
            self.peek(&mut connection).await?;
        }
    }

    async fn peek(
        &self,
        connection: &mut impl redis::aio::ConnectionLike,
    ) -> redis::RedisResult<()> {
        let mut command = redis::cmd("BLMOVE");
        command.arg(self.lane.target()).arg(self.lane.target()).arg("LEFT").arg("LEFT");
        command.arg(WAIT.as_secs());
        let seen: redis::Value = command.query_async(connection).await?;
        if seen != redis::Value::Nil {
            self.listeners.wake(&self.lane.queue, Timestamp::EPOCH);
            tokio::time::sleep(REST).await;
        }
        Ok(())
    }
}
