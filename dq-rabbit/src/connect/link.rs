//! One connection that is kept up: made by a task of its own, made anew whenever it breaks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dq_core::Result;
use futures_util::StreamExt;
use lapin::{Channel, Event};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::server::{Server, Wire};
use crate::error::{self, Effect, closed};

/// Between two attempts to connect.
const FIRST_REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(1);

/// A connection that has lasted for so long was a good one.
const GOOD: Duration = Duration::from_secs(1);

/// What the broker is given to answer our farewell.
const FAREWELL: Duration = Duration::from_millis(500);

/// How often a connection is looked at of which nothing is heard.
const LOOK: Duration = Duration::from_secs(1);

/// One connection, kept up until it is closed or this is dropped.
///
/// The broker blocks connections that publish when it runs out of memory or disk; nothing can then be
/// sent on them, acknowledgements included. So those who consume have a link of their own.
pub(crate) struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    server: Arc<Server>,
    purpose: &'static str,
    state: watch::Sender<State>,
    /// How many connections were made so far.
    generation: AtomicU64,
    /// Somebody found the connection broken.
    broken: Notify,
    /// The node is of no use, though it keeps the connection.
    leaving: Notify,
    /// Why the broker takes nothing on this connection.
    blocked: Mutex<Option<String>>,
    closing: CancellationToken,
}

#[derive(Clone)]
enum State {
    /// The first attempt is under way.
    Connecting,
    /// Connected.
    Up(Arc<Wire>, u64),
    /// The connection broke because of this, and nobody has tried again.
    Lost(lapin::Error),
    /// The last attempt ended with this.
    Refused(lapin::Error),
    /// Closed for good.
    Closed,
}

impl Link {
    /// Starts to connect; waits for nothing. The purpose is part of the name that the broker shows.
    pub(crate) fn start(server: Arc<Server>, purpose: &'static str) -> Self {
        let shared = Arc::new(Shared {
            server,
            purpose,
            state: watch::Sender::new(State::Connecting),
            generation: AtomicU64::new(0),
            broken: Notify::new(),
            leaving: Notify::new(),
            blocked: Mutex::default(),
            closing: CancellationToken::new(),
        });
        tokio::spawn(Arc::clone(&shared).keep_up());
        Self { shared }
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.shared.server
    }

    /// A new channel. Waits for a connection as long as for an answer, unless the broker has said that
    /// it will not have us.
    pub(crate) async fn channel(&self, operation: &'static str) -> Result<Channel> {
        Ok(self.open(operation).await?.0)
    }

    /// A new channel and the generation of its connection, for [`lost`](Self::lost).
    pub(crate) async fn open(&self, operation: &'static str) -> Result<(Channel, u64)> {
        let shared = &self.shared;
        let told = |error: &lapin::Error| {
            // Before there was a connection, it is the connecting that fails, whatever it is for.
            let first = self.generation() == 0;
            let operation = if first { "connect" } else { operation };
            error::of_call(operation, Effect::None, &shared.server, error)
        };
        let timed_out = || lapin::Error::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let deadline = Instant::now() + shared.server.response_timeout;
        let mut states = shared.state.subscribe();
        let mut last = None;
        loop {
            let state = states.borrow_and_update().clone();
            match state {
                _ if shared.closing.is_cancelled() => return Err(closed(operation)),
                State::Closed => return Err(closed(operation)),
                State::Connecting => {}
                State::Lost(error) => last = Some(told(&error)),
                State::Refused(error) => {
                    let told = told(&error);
                    if !told.is_retryable() {
                        return Err(told.operation("connect"));
                    }
                    last = Some(told);
                }
                State::Up(wire, generation) => {
                    let opening =
                        tokio::time::timeout_at(deadline, wire.connection.create_channel());
                    match opening.await {
                        Ok(Ok(channel)) => return Ok((channel, generation)),
                        Ok(Err(error)) if error::breaks_connection(&error) => {
                            last = Some(told(&error));
                            shared.broken.notify_one();
                        }
                        Ok(Err(error)) => return Err(told(&error)),
                        Err(_) => return Err(self.blocked_or(operation, told(&timed_out()))),
                    }
                }
            }
            if tokio::time::timeout_at(deadline, states.changed()).await.is_err() {
                return Err(last.unwrap_or_else(|| told(&timed_out())));
            }
        }
    }

    /// What is wrong when nothing is answered: most likely that the broker blocks us.
    fn blocked_or(&self, operation: &'static str, error: dq_core::Error) -> dq_core::Error {
        match self.blocked() {
            Some(why) => error::blocked(operation, self.server(), &why),
            None => error,
        }
    }

    /// Ends the connection, so that another is made.
    pub(crate) fn leave(&self) {
        // Not for later: it is this connection that is meant.
        self.shared.leaving.notify_waiters();
    }

    /// How many connections were made so far.
    pub(crate) fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Waits until the connection of this generation is gone; at once if it is.
    pub(crate) async fn lost(&self, generation: u64) {
        let mut states = self.shared.state.subscribe();
        let gone = |state: &State| !matches!(state, State::Up(_, now) if *now == generation);
        // The sender lives as long as this link.
        states.wait_for(gone).await.ok();
    }

    /// Why the broker takes nothing on this connection, if it does not: an alarm of memory or disk. It
    /// says so only after something was published.
    pub(crate) fn blocked(&self) -> Option<String> {
        self.shared.blocked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why there is no connection, if there is none.
    pub(crate) fn failure(&self) -> Option<lapin::Error> {
        match &*self.shared.state.borrow() {
            State::Lost(error) | State::Refused(error) => Some(error.clone()),
            State::Connecting | State::Up(..) | State::Closed => None,
        }
    }

    /// Closes the connection, for a moment waiting for the broker to agree. Idempotent.
    pub(crate) async fn close(&self) {
        self.shared.closing.cancel();
        let mut states = self.shared.state.subscribe();
        let over = states.wait_for(|state| matches!(state, State::Closed));
        // The task may be gone with the runtime that it was made in.
        tokio::time::timeout(FAREWELL * 2, over).await.ok();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.closing.cancel();
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("server", &self.shared.server)
            .field("purpose", &self.shared.purpose)
            .field("generation", &self.generation())
            .finish_non_exhaustive()
    }
}

impl Shared {
    async fn keep_up(self: Arc<Self>) {
        let mut rest = FIRST_REST;
        loop {
            let connecting = self.server.connect(self.purpose);
            let Some(connected) = self.closing.run_until_cancelled(connecting).await else {
                break;
            };
            let down = match connected {
                Ok(wire) => {
                    let since = Instant::now();
                    let Some(error) = self.hold(Arc::new(wire)).await else {
                        break;
                    };
                    if since.elapsed() >= GOOD {
                        rest = FIRST_REST;
                    }
                    tracing::warn!(purpose = self.purpose, %error, "the connection to RabbitMQ is lost");
                    State::Lost(error)
                }
                Err(error) => {
                    tracing::debug!(purpose = self.purpose, %error, "no connection to RabbitMQ");
                    State::Refused(error)
                }
            };
            self.state.send_replace(down);
            // Between half and all of it, so that those who lost the same broker do not come back
            // together.
            let wait = rest.mul_f64(0.5 + self.server.entropy.fraction() / 2.0);
            let slept = self.closing.run_until_cancelled(tokio::time::sleep(wait)).await;
            if slept.is_none() {
                break;
            }
            rest = (rest * 2).min(LONGEST_REST);
        }
        self.state.send_replace(State::Closed);
    }

    /// Offers a connection until it breaks, or until the link is closed: `None`.
    async fn hold(&self, wire: Arc<Wire>) -> Option<lapin::Error> {
        let mut events = std::pin::pin!(wire.connection.events_listener());
        let status = wire.connection.status();
        let generation = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        if status.blocked() {
            // Said before we listened.
            self.set_blocked(Some("the broker has an alarm".to_owned()));
        }
        self.state.send_replace(State::Up(Arc::clone(&wire), generation));
        let lost = loop {
            let event = tokio::select! {
                () = self.closing.cancelled() => break None,
                () = self.leaving.notified() => break Some(left()),
                event = events.next() => event,
                () = self.broken.notified() => None,
                () = tokio::time::sleep(LOOK) => None,
            };
            match event {
                Some(Event::ConnectionBlocked(why)) => {
                    tracing::warn!(purpose = self.purpose, %why, "RabbitMQ takes no more messages");
                    self.set_blocked(Some(why));
                }
                Some(Event::ConnectionUnblocked) => {
                    tracing::info!(purpose = self.purpose, "RabbitMQ takes messages again");
                    self.set_blocked(None);
                }
                Some(Event::Error(error)) if !status.connected() => break Some(error),
                _ if !status.connected() => {
                    break Some(lapin::ErrorKind::InvalidConnectionState(state_of(status)).into());
                }
                _ => {}
            }
        };
        self.set_blocked(None);
        if lost.is_none() {
            // Nobody may find it while it closes.
            self.state.send_replace(State::Connecting);
            let farewell = wire.connection.close(200, "closed by dq".into());
            tokio::time::timeout(FAREWELL, farewell).await.ok();
        }
        lost
    }

    fn set_blocked(&self, why: Option<String>) {
        *self.blocked.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

fn left() -> lapin::Error {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "the node was left, for it did nothing")
        .into()
}

fn state_of(status: &lapin::ConnectionStatus) -> lapin::ConnectionState {
    if status.errored() { lapin::ConnectionState::Error } else { lapin::ConnectionState::Closed }
}
