//! A connection that a background task reopens whenever it breaks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::Result;
use dq_core::sync::lock;
use futures_util::StreamExt;
use lapin::Event;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::broker::{Broker, OpenConnection};
use super::channel::{AmqpChannel, ReplyLimit};
use crate::error::{self, BrokerInfo, LostReply, closed};

/// The pause between two attempts. It doubles up to the maximum.
const MIN_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// The pause is short again after a connection that lasted this long.
const STABLE_AFTER: Duration = Duration::from_secs(1);

const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// How often the status is looked at, because not every loss is an event.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// An AMQP connection that is reopened whenever it breaks, until it is closed or dropped.
///
/// A broker without memory or disk blocks connections that publish. They cannot even acknowledge,
/// so consumers use their own connection.
pub(crate) struct AmqpConnection {
    shared: Arc<Shared>,
}

struct Shared {
    broker: Arc<Broker>,
    purpose: &'static str,
    state: watch::Sender<State>,
    epoch: AtomicU64,
    /// Signals that a user of the connection finds it broken.
    broken: Notify,
    /// Signals that the connection is to be replaced although it is open.
    reconnect: Notify,
    blocked: Arc<Mutex<Option<String>>>,
    closing: CancellationToken,
}

#[derive(Clone)]
enum State {
    /// The first attempt is under way, or the connection closes on request.
    Connecting,
    /// With its epoch.
    Open(Arc<OpenConnection>, u64),
    Lost(lapin::Error),
    Failed(lapin::Error),
    Closed,
}

impl AmqpConnection {
    /// Connects in the background. The broker lists `purpose` in the connection's name.
    pub(crate) fn start(broker: Arc<Broker>, purpose: &'static str) -> Self {
        let shared = Arc::new(Shared {
            broker,
            purpose,
            state: watch::Sender::new(State::Connecting),
            epoch: AtomicU64::new(0),
            broken: Notify::new(),
            reconnect: Notify::new(),
            blocked: Arc::default(),
            closing: CancellationToken::new(),
        });
        tokio::spawn(Arc::clone(&shared).run());
        Self { shared }
    }

    pub(crate) fn broker_info(&self) -> &BrokerInfo {
        &self.shared.broker.info
    }

    /// The limit of one reply.
    pub(crate) fn response_timeout(&self) -> Duration {
        self.shared.broker.response_timeout
    }

    /// Opens a channel. Waits up to the response timeout for a connection.
    ///
    /// # Errors
    /// At once if a retry cannot help. After the timeout, the error of the last attempt, or the
    /// alarm if the broker blocks the connection. `Closed` after [`close`](Self::close).
    pub(crate) async fn channel(&self, operation: &'static str) -> Result<AmqpChannel> {
        Ok(self.open(operation).await?.0)
    }

    /// Opens a channel like [`channel`](Self::channel). Also returns the connection's epoch, by
    /// which [`lost`](Self::lost) tells it from later connections.
    pub(crate) async fn open(&self, operation: &'static str) -> Result<(AmqpChannel, u64)> {
        let shared = &self.shared;
        let to_error = |error: &lapin::Error| {
            // Without a first connection, the operation that fails is to connect.
            let first = self.epoch() == 0;
            let operation = if first { "connect" } else { operation };
            error::from_lapin(operation, LostReply::Unavailable, &shared.broker.info, error)
        };
        let timed_out = || lapin::Error::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let deadline = Instant::now() + shared.broker.response_timeout;
        let mut states = shared.state.subscribe();
        let mut last = None;
        loop {
            let state = states.borrow_and_update().clone();
            match state {
                _ if shared.closing.is_cancelled() => return Err(closed(operation)),
                State::Closed => return Err(closed(operation)),
                State::Connecting => {}
                State::Lost(error) => last = Some(to_error(&error)),
                State::Failed(error) => {
                    let error = to_error(&error);
                    if !error.is_retryable() {
                        return Err(error.operation("connect"));
                    }
                    last = Some(error);
                }
                State::Open(connection, epoch) => {
                    let timeout = deadline.saturating_duration_since(Instant::now());
                    let limit = ReplyLimit { timeout, blocked: Arc::clone(&shared.blocked) };
                    match AmqpChannel::open(&connection.amqp, limit).await {
                        Ok(channel) => {
                            let timeout = shared.broker.response_timeout;
                            return Ok((channel.with_timeout(timeout), epoch));
                        }
                        Err(error) if Instant::now() >= deadline => return Err(to_error(&error)),
                        Err(error) if error::breaks_connection(&error) => {
                            last = Some(to_error(&error));
                            shared.broken.notify_one();
                        }
                        Err(error) => return Err(to_error(&error)),
                    }
                }
            }
            if tokio::time::timeout_at(deadline, states.changed()).await.is_err() {
                return Err(last.unwrap_or_else(|| to_error(&timed_out())));
            }
        }
    }

    /// Makes the next connections go to another node; `false` if there is only one.
    pub(crate) fn skip_node(&self) -> bool {
        self.shared.broker.skip_node()
    }

    /// Replaces the connection if it is open.
    pub(crate) fn reconnect(&self) {
        // Stores no permit, which would end a later connection.
        self.shared.reconnect.notify_waiters();
    }

    /// Counts the connections; 0 before the first.
    pub(crate) fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    pub(crate) async fn lost(&self, epoch: u64) {
        let mut states = self.shared.state.subscribe();
        let lost = |state: &State| !matches!(state, State::Open(_, open) if *open == epoch);
        states.wait_for(lost).await.ok();
    }

    pub(crate) async fn replaced(&self, epoch: u64) {
        let mut states = self.shared.state.subscribe();
        let newer = |state: &State| matches!(state, State::Open(_, open) if *open > epoch);
        states.wait_for(newer).await.ok();
    }

    /// Why the broker blocks this connection: a memory or disk alarm. It tells this only after a
    /// publish.
    pub(crate) fn blocked(&self) -> Option<String> {
        lock(&self.shared.blocked).clone()
    }

    /// The last error, while there is no connection.
    pub(crate) fn failure(&self) -> Option<lapin::Error> {
        match &*self.shared.state.borrow() {
            State::Lost(error) | State::Failed(error) => Some(error.clone()),
            State::Connecting | State::Open(..) | State::Closed => None,
        }
    }

    /// Waits a moment for the broker's reply. Idempotent.
    pub(crate) async fn close(&self) {
        self.shared.closing.cancel();
        let mut states = self.shared.state.subscribe();
        let closed = states.wait_for(|state| matches!(state, State::Closed));
        // Times out if the background task ended with its runtime.
        tokio::time::timeout(CLOSE_TIMEOUT * 2, closed).await.ok();
    }
}

impl Drop for AmqpConnection {
    fn drop(&mut self) {
        self.shared.closing.cancel();
    }
}

impl std::fmt::Debug for AmqpConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AmqpConnection")
            .field("broker", &self.shared.broker)
            .field("purpose", &self.shared.purpose)
            .field("epoch", &self.epoch())
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Connects again and again until `closing` is cancelled.
    async fn run(self: Arc<Self>) {
        let mut backoff = MIN_BACKOFF;
        loop {
            let connecting = self.broker.connect(self.purpose);
            let Some(connected) = self.closing.run_until_cancelled(connecting).await else {
                break;
            };
            let state = match connected {
                Ok(connection) => {
                    let since = Instant::now();
                    let Some(error) = self.watch(Arc::new(connection)).await else {
                        break;
                    };
                    if since.elapsed() >= STABLE_AFTER {
                        backoff = MIN_BACKOFF;
                    }
                    tracing::warn!(purpose = self.purpose, %error, "connection to RabbitMQ lost");
                    State::Lost(error)
                }
                Err(error) => {
                    tracing::debug!(purpose = self.purpose, %error, "cannot connect to RabbitMQ");
                    State::Failed(error)
                }
            };
            self.state.send_replace(state);
            // Processes that lost the same broker must not all reconnect at once.
            let pause = backoff.mul_f64(0.5 + self.broker.entropy.fraction() / 2.0);
            let slept = self.closing.run_until_cancelled(tokio::time::sleep(pause)).await;
            if slept.is_none() {
                break;
            }
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
        self.state.send_replace(State::Closed);
    }

    /// Returns the error with which the connection broke; `None` if it was closed on request.
    async fn watch(&self, connection: Arc<OpenConnection>) -> Option<lapin::Error> {
        let mut events = std::pin::pin!(connection.amqp.events_listener());
        let status = connection.amqp.status();
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        if status.blocked() {
            // The event came before the listener was registered.
            self.set_blocked(Some("the broker has an alarm".to_owned()));
        }
        self.state.send_replace(State::Open(Arc::clone(&connection), epoch));
        let lost = loop {
            let event = tokio::select! {
                () = self.closing.cancelled() => break None,
                () = self.reconnect.notified() => {
                    let kind = std::io::ErrorKind::TimedOut;
                    break Some(std::io::Error::new(kind, "the node did not respond").into());
                }
                event = events.next() => event,
                () = self.broken.notified() => None,
                () = tokio::time::sleep(STATUS_INTERVAL) => None,
            };
            match event {
                Some(Event::ConnectionBlocked(reason)) => {
                    tracing::warn!(purpose = self.purpose, %reason, "RabbitMQ accepts no messages");
                    self.set_blocked(Some(reason));
                }
                Some(Event::ConnectionUnblocked) => {
                    tracing::info!(purpose = self.purpose, "RabbitMQ accepts messages again");
                    self.set_blocked(None);
                }
                Some(Event::Error(error)) if !status.connected() => break Some(error),
                _ if !status.connected() => {
                    let state = if status.errored() {
                        lapin::ConnectionState::Error
                    } else {
                        lapin::ConnectionState::Closed
                    };
                    break Some(lapin::ErrorKind::InvalidConnectionState(state).into());
                }
                _ => {}
            }
        };
        self.set_blocked(None);
        if lost.is_none() {
            // No channel may be opened while the connection closes.
            self.state.send_replace(State::Connecting);
            connection.close(CLOSE_TIMEOUT).await;
        }
        lost
    }

    fn set_blocked(&self, reason: Option<String>) {
        *lock(&self.blocked) = reason;
    }
}
