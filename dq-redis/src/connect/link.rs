//! The connection for commands: made at the first call, shared, and replaced when it breaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dq_core::{Clock, Result};
use futures_util::FutureExt;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{Cmd, RedisError, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::server::{Server, ServerClient, connect};
use crate::error::{self, Effect, closed};

/// After a failed attempt to connect, calls fail with its error for this long.
const RECONNECT_DELAY: Duration = Duration::from_millis(100);

const FIRST_RETRY_DELAY: Duration = Duration::from_millis(10);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(500);

pub(crate) struct Link {
    server: Arc<Server>,
    clock: Arc<dyn Clock>,
    state: Mutex<LinkState>,
    closed: CancellationToken,
    connections: AtomicU64,
}

#[derive(Default)]
struct LinkState {
    connection: Option<Connection>,
    /// Identifies the connection: how many there have been.
    generation: u64,
    failed: Option<(Duration, RedisError)>,
}

#[derive(Clone)]
enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Link {
    pub(crate) fn new(server: Arc<Server>, clock: Arc<dyn Clock>) -> Self {
        Self {
            server,
            clock,
            state: Mutex::default(),
            closed: CancellationToken::new(),
            connections: AtomicU64::new(0),
        }
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Runs one command. Dropping the future after the command was sent does not undo its effect.
    pub(crate) async fn run(&self, effect: Effect, command: &Cmd) -> Result<Value> {
        self.result(effect, self.query(None, command).await)
    }

    pub(crate) fn result(
        &self,
        effect: Effect,
        answer: Result<Value, CommandError>,
    ) -> Result<Value> {
        let (effect, error) = match answer {
            Ok(value) => return Ok(value),
            Err(CommandError::Closed) => return Err(closed()),
            Err(CommandError::NotSent(error)) => (Effect::Repeatable, error),
            Err(CommandError::Failed(error)) => (effect, error),
        };
        Err(error::command_error(effect, &self.server.origin(), &error))
    }

    /// Runs a command and returns the errors of Redis. With a slot, a command without keys runs on
    /// the slot's primary in a cluster.
    ///
    /// Repeats a command while a cluster refuses it because it moves slots or elects primaries, up
    /// to the response timeout. Never repeats a command with a lost reply: only the caller knows
    /// whether that is harmless.
    pub(crate) async fn query(
        &self,
        slot: Option<u16>,
        command: &Cmd,
    ) -> Result<Value, CommandError> {
        let deadline = Instant::now() + self.server.response_timeout;
        let mut delay = FIRST_RETRY_DELAY;
        loop {
            let answer = self.run_once(command, slot).await;
            let refused = matches!(&answer, Err(CommandError::Failed(error))
                if self.server.is_cluster() && error::is_cluster_refusal(error));
            if !refused || Instant::now() + delay >= deadline {
                return answer;
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(MAX_RETRY_DELAY);
        }
    }

    async fn run_once(&self, command: &Cmd, slot: Option<u16>) -> Result<Value, CommandError> {
        let (mut connection, generation) = self.connection().await?;
        let answer = match (&mut connection, slot) {
            (Connection::Single(connection), _) => connection.req_packed_command(command).await,
            (Connection::Cluster(connection), None) => connection.req_packed_command(command).await,
            (Connection::Cluster(connection), Some(slot)) => {
                let primary = Route::new(slot, SlotAddr::Master);
                let node = SingleNodeRoutingInfo::SpecificNode(primary);
                connection.route_command(command.clone(), RoutingInfo::SingleNode(node)).await
            }
        };
        let answer = answer.and_then(Value::extract_error);
        if let Err(error) = &answer
            && error::breaks_connection(error)
        {
            self.forget(generation).await;
        }
        answer.map_err(CommandError::Failed)
    }

    pub(crate) async fn close(&self) {
        self.closed.cancel();
        self.state.lock().await.connection = None;
    }

    /// Counts connections. A cache of stored data is valid on one connection only: the next may
    /// lead to a server that was replaced or restored.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Acquire)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    async fn connection(&self) -> Result<(Connection, u64), CommandError> {
        let connection = self.closed.run_until_cancelled(self.connect_if_needed()).await;
        connection.unwrap_or(Err(CommandError::Closed))
    }

    async fn connect_if_needed(&self) -> Result<(Connection, u64), CommandError> {
        let mut state = self.state.lock().await;
        if self.is_closed() {
            return Err(CommandError::Closed);
        }
        if let Some(connection) = &state.connection {
            return Ok((connection.clone(), state.generation));
        }
        if let Some((failed_at, error)) = &state.failed
            && self.clock.elapsed() < *failed_at + RECONNECT_DELAY
        {
            return Err(CommandError::NotSent(error.clone()));
        }
        // Boxed because it is large and rare: the futures of all calls stay small, and their types
        // stay within the compiler's recursion limit.
        match Box::pin(self.connect()).await {
            Ok(connection) => {
                state.connection = Some(connection.clone());
                state.generation += 1;
                self.connections.store(state.generation, Ordering::Release);
                state.failed = None;
                Ok((connection, state.generation))
            }
            Err(error) => {
                state.failed = Some((self.clock.elapsed(), error.clone()));
                Err(CommandError::NotSent(error))
            }
        }
    }

    async fn connect(&self) -> Result<Connection, RedisError> {
        let connecting = async {
            match self.server.client().await? {
                ServerClient::Single(client) => {
                    let connect_timeout = self.server.connect_timeout;
                    let response_timeout = self.server.response_timeout;
                    let connection = connect(&client, connect_timeout, response_timeout);
                    Ok(Connection::Single(connection.await?))
                }
                ServerClient::Cluster(client) => {
                    Ok(Connection::Cluster(client.get_async_connection().await?))
                }
            }
        };
        // Three times, because Sentinel and clusters need several connections one after the other.
        // Boxed because the client's types are deeply nested.
        match tokio::time::timeout(self.server.connect_timeout * 3, connecting.boxed()).await {
            Ok(connected) => connected,
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    async fn forget(&self, generation: u64) {
        let mut state = self.state.lock().await;
        // A cluster connection replaces its connections to single nodes by itself.
        if state.generation == generation
            && !matches!(state.connection, Some(Connection::Cluster(_)))
        {
            state.connection = None;
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("server", &self.server).finish_non_exhaustive()
    }
}

pub(crate) enum CommandError {
    Closed,
    /// No connection: the command had no effect.
    NotSent(RedisError),
    /// The server refused the command, or the reply was lost.
    Failed(RedisError),
}
