//! The connection for commands: made when it is needed, shared by all calls, made anew when it
//! breaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dq_core::{Clock, Result};
use futures_util::FutureExt;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{AsyncConnectionConfig, Cmd, RedisError, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::server::{CONNECT_TIMEOUT, Server, Target};
use crate::error::{self, closed};

/// After a failure to connect, others are told the same for so long, instead of each trying.
const REST: Duration = Duration::from_millis(100);

/// Before a call is sent again that a cluster refused because its slots are on the move.
const FIRST_PATIENCE: Duration = Duration::from_millis(10);
const LONGEST_PATIENCE: Duration = Duration::from_millis(500);

/// What is unknown when the answer of a command is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing that matters: the command can be repeated, or what it did lapses.
    None,
    /// Whether it took effect.
    Lasting,
}

/// The connection for commands.
pub(crate) struct Link {
    server: Arc<Server>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    closed: CancellationToken,
    connections: AtomicU64,
}

#[derive(Default)]
struct State {
    wire: Option<Wire>,
    generation: u64,
    failed: Option<(Duration, RedisError)>,
}

#[derive(Clone)]
enum Wire {
    One(MultiplexedConnection),
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

    /// Runs one command. Cancellation safe: a command that was sent is not taken back.
    pub(crate) async fn run(
        &self,
        operation: &'static str,
        effect: Effect,
        command: &Cmd,
    ) -> Result<Value> {
        self.told(operation, effect, self.query(command).await)
    }

    /// The outcome as callers of the backend get it.
    pub(crate) fn told(
        &self,
        operation: &'static str,
        effect: Effect,
        answer: Result<Value, Failure>,
    ) -> Result<Value> {
        let (effect, error) = match answer {
            Ok(value) => return Ok(value),
            Err(Failure::Closed) => return Err(closed(operation)),
            Err(Failure::NotSent(error)) => (Effect::None, error),
            Err(Failure::Answered(error)) => (effect, error),
        };
        Err(error::of_command(operation, effect, &self.server.address, &error))
    }

    /// Runs one command that names no key, in a cluster at the primary of this slot.
    pub(crate) async fn run_at(
        &self,
        slot: u16,
        operation: &'static str,
        command: &Cmd,
    ) -> Result<Value> {
        self.told(operation, Effect::None, self.patiently(command, Some(slot)).await)
    }

    /// Runs one command for its plain outcome, where the error itself is of interest.
    pub(crate) async fn query(&self, command: &Cmd) -> Result<Value, Failure> {
        self.patiently(command, None).await
    }

    /// A cluster that moves slots or chooses new primaries refuses calls for a while, without
    /// effect. What was sent and lost its answer is never sent again: only the caller knows whether
    /// that is harmless.
    async fn patiently(&self, command: &Cmd, slot: Option<u16>) -> Result<Value, Failure> {
        let deadline = Instant::now() + self.server.response_timeout;
        let mut patience = FIRST_PATIENCE;
        loop {
            let answer = self.once(command, slot).await;
            let refused = matches!(&answer, Err(Failure::Answered(error))
                if self.server.is_cluster() && error::is_refusal_of_cluster(error));
            if !refused || Instant::now() + patience >= deadline {
                return answer;
            }
            tokio::time::sleep(patience).await;
            patience = (patience * 2).min(LONGEST_PATIENCE);
        }
    }

    async fn once(&self, command: &Cmd, slot: Option<u16>) -> Result<Value, Failure> {
        let (mut wire, generation) = self.wire().await?;
        let answer = match (&mut wire, slot) {
            (Wire::One(connection), _) => connection.req_packed_command(command).await,
            (Wire::Cluster(connection), None) => connection.req_packed_command(command).await,
            (Wire::Cluster(connection), Some(slot)) => {
                let primary = Route::new(slot, SlotAddr::Master);
                let there = SingleNodeRoutingInfo::SpecificNode(primary);
                connection.route_command(command.clone(), RoutingInfo::SingleNode(there)).await
            }
        };
        let answer = answer.and_then(Value::extract_error);
        if let Err(error) = &answer
            && error::breaks_connection(error)
        {
            self.forget(generation).await;
        }
        answer.map_err(Failure::Answered)
    }

    /// Fails every later command, and those that wait for a connection.
    pub(crate) async fn close(&self) {
        self.closed.cancel();
        self.state.lock().await.wire = None;
    }

    /// How many connections were made so far.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Acquire)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    async fn wire(&self) -> Result<(Wire, u64), Failure> {
        self.closed
            .run_until_cancelled(self.wire_unless_closed())
            .await
            .unwrap_or(Err(Failure::Closed))
    }

    async fn wire_unless_closed(&self) -> Result<(Wire, u64), Failure> {
        let mut state = self.state.lock().await;
        if self.is_closed() {
            return Err(Failure::Closed);
        }
        if let Some(wire) = &state.wire {
            return Ok((wire.clone(), state.generation));
        }
        if let Some((at, error)) = &state.failed
            && self.clock.elapsed() < *at + REST
        {
            return Err(Failure::NotSent(error.clone()));
        }
        // Rare and large: apart, so that the future of every call is not as large, and not as deep
        // as compilers put up with.
        match Box::pin(self.connect()).await {
            Ok(wire) => {
                state.wire = Some(wire.clone());
                state.generation += 1;
                self.connections.store(state.generation, Ordering::Release);
                state.failed = None;
                Ok((wire, state.generation))
            }
            Err(error) => {
                state.failed = Some((self.clock.elapsed(), error.clone()));
                Err(Failure::NotSent(error))
            }
        }
    }

    async fn connect(&self) -> Result<Wire, RedisError> {
        let connecting = async {
            match self.server.target().await? {
                Target::One(client) => {
                    let config = AsyncConnectionConfig::new()
                        .set_connection_timeout(Some(CONNECT_TIMEOUT))
                        .set_response_timeout(Some(self.server.response_timeout));
                    let connection = client.get_multiplexed_async_connection_with_config(&config);
                    Ok(Wire::One(connection.await?))
                }
                Target::Cluster(client) => Ok(Wire::Cluster(client.get_async_connection().await?)),
            }
        };
        // Sentinels and clusters are several connections, one after the other. Boxed: the types of
        // the client's futures are deep.
        match tokio::time::timeout(CONNECT_TIMEOUT * 3, connecting.boxed()).await {
            Ok(connected) => connected,
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    async fn forget(&self, generation: u64) {
        let mut state = self.state.lock().await;
        // A cluster's connection mends itself, node by node.
        if state.generation == generation && !matches!(state.wire, Some(Wire::Cluster(_))) {
            state.wire = None;
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Why a command has no answer.
pub(crate) enum Failure {
    /// The link was closed.
    Closed,
    /// There is no connection, so it had no effect.
    NotSent(RedisError),
    /// The server refused it, or its answer was lost.
    Answered(RedisError),
}
