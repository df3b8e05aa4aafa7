//! The log: a stream of the broker that holds every call, in an order on which all processes agree.
//!
//! A call is written, read back, and answered by the state as it is at its place in the log. Each
//! process applies all calls to a replica of its own, so all come to the same answers, and what was
//! answered holds for everybody. Nothing else decides about a job: the messages that wait in the
//! ladder carry payloads to where they are needed in time, and can be lost, doubled or late.

mod append;
mod call;
mod command;
mod compact;
mod fetch;
mod replica;
mod room;
mod start;
mod tail;
#[cfg(test)]
mod tests;
mod window;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{Clock, Entropy, Error, Listeners, Result, Timestamp};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connect::AmqpConnection;
use crate::error::Effect;
use crate::topology::Topology;

pub(crate) use call::At;
use call::{Call, Sent};
pub(crate) use command::{Claiming, Command, Naming, Scheduling, Settling};
pub(crate) use replica::{AHEAD, Place, Replica, Reply};
use room::Room;
use window::Window;

/// The log, open.
pub(crate) struct Log {
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

/// What the loops of an open log share.
struct Shared {
    state: Mutex<State>,
    /// There is something to write.
    waiting: Notify,
    /// What was written has to be written again.
    again: Notify,
    /// What was written is not read back.
    stuck: Notify,
    /// Messages read so far.
    read: AtomicU64,
    /// Something was answered since reading began.
    caught_up: AtomicBool,
    /// What kept us from reading or writing last, since something was answered.
    trouble: Mutex<Option<Error>>,
    /// We are writing a copy.
    copying: AtomicBool,
    /// The log holds something that cannot be read; nothing can be said any more.
    broken: Mutex<Option<Error>>,
    closed: AtomicBool,
    stop: CancellationToken,
    listeners: Arc<Listeners>,
    clock: Arc<dyn Clock>,
    entropy: Arc<Entropy>,
    topology: Arc<Topology>,
    publish: Arc<AmqpConnection>,
    consume: Arc<AmqpConnection>,
    settings: LogSettings,
}

/// What of the configuration concerns the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogSettings {
    /// How long to wait while nothing moves.
    pub(crate) response_timeout: Duration,
    /// What the broker keeps, in bytes.
    pub(crate) size: u64,
}

struct State {
    replica: Replica,
    /// Calls that were not written yet.
    unsent: VecDeque<Call>,
    /// Bytes of all calls that wait, written or not.
    waiting_bytes: usize,
    /// Calls that were written and not read back yet, by number.
    sent: VecDeque<Sent>,
    origin: u64,
    /// Nothing is known of the origin any more.
    forgotten: bool,
    next_number: u64,
    /// The offset of the message that is to be read next; `None` before the first.
    next_offset: Option<u64>,
    window: Window,
    room: Room,
}

impl State {
    /// Whether it is time for a copy, and nobody is writing one.
    fn wants_copy(&mut self, now: Timestamp) -> bool {
        let jobs = self.replica.machine().len();
        self.room.wants_copy(jobs, now)
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

impl Log {
    /// Opens the log and reads all that counts of it.
    pub(crate) async fn open(
        settings: LogSettings,
        environment: &Environment,
        topology: Arc<Topology>,
        publish: Arc<AmqpConnection>,
        consume: Arc<AmqpConnection>,
        listeners: Arc<Listeners>,
    ) -> Result<Self> {
        let state = State {
            replica: Replica::unfounded(),
            unsent: VecDeque::new(),
            waiting_bytes: 0,
            sent: VecDeque::new(),
            origin: draw(&environment.entropy),
            forgotten: false,
            next_number: 1,
            next_offset: None,
            window: Window::default(),
            room: Room::unread(settings.size),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            waiting: Notify::new(),
            again: Notify::new(),
            stuck: Notify::new(),
            read: AtomicU64::new(0),
            caught_up: AtomicBool::new(false),
            trouble: Mutex::default(),
            copying: AtomicBool::new(false),
            broken: Mutex::default(),
            closed: AtomicBool::new(false),
            stop: CancellationToken::new(),
            listeners,
            clock: Arc::clone(&environment.clock),
            entropy: Arc::clone(&environment.entropy),
            topology,
            publish,
            consume,
            settings,
        });
        let tasks = TaskTracker::new();
        tasks.spawn(shared.stop.clone().run_until_cancelled_owned(tail::run(Arc::clone(&shared))));
        tasks
            .spawn(shared.stop.clone().run_until_cancelled_owned(append::run(Arc::clone(&shared))));
        let log = Self { shared, tasks };
        log.call("connect", Effect::None, Command::Look, |_, _, _| ()).await?;
        Ok(log)
    }

    /// The clock that calls are dated by.
    pub(crate) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// That clock itself.
    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.shared.clock
    }

    /// Whether the log has been closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Makes a call and waits until it has been read back. `read` takes from the reply, and from the
    /// state right after the call, what is to be answered.
    ///
    /// **Cancellation safety:** a call that is dropped may take effect still.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        effect: Effect,
        command: Command,
        read: impl FnOnce(&mut Replica, Reply, At) -> T + Send + 'static,
    ) -> Result<T> {
        self.shared.call(operation, effect, command, read).await
    }

    /// Whether what lives takes so much of the log that nothing should be added.
    pub(crate) fn is_full(&self) -> bool {
        let mut state = self.shared.state();
        let jobs = state.replica.machine().len();
        let is_full = state.room.is_full();
        // As the last copy had it. If much has ended since, the next tells better.
        if is_full && state.room.has_shrunk_to(jobs, self.shared.clock.now()) {
            compact::start(&self.shared);
        }
        is_full
    }

    /// A look at the state as it was read last, without a call.
    pub(crate) fn peek<T>(&self, look: impl FnOnce(&mut Replica) -> T) -> T {
        look(&mut self.shared.state().replica)
    }

    /// Stops writing and reading. Calls that wait are answered `Closed`.
    pub(crate) async fn close(&self) {
        {
            let mut state = self.shared.state();
            self.shared.closed.store(true, Ordering::Release);
            state.unsent.clear();
            state.sent.clear();
        }
        self.shared.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic in here would be a bug of the replica; the others still get an answer.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn broken(&self) -> Option<Error> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(again)
    }

    fn troubles(&self) -> MutexGuard<'_, Option<Error>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes why nothing can be read or written now. What goes away by itself says less than what was
    /// there before.
    fn note(&self, error: Error) {
        let mut trouble = self.troubles();
        if trouble.as_ref().is_none_or(Error::is_retryable) {
            *trouble = Some(error);
        }
    }

    /// Nothing more can be read or written: whoever waits is told.
    fn break_off(&self, error: Error) {
        tracing::error!(%error, "the log cannot be read any further");
        *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        let mut state = self.state();
        state.unsent.clear();
        state.waiting_bytes = 0;
        state.sent.clear();
    }
}

/// The same error for one more call.
fn again(error: &Error) -> Error {
    let copy = Error::new(error.kind(), error.what().to_owned());
    match error.remedy_text() {
        Some(remedy) => copy.remedy(remedy.to_owned()),
        None => copy,
    }
}

/// A number that nobody else has.
fn draw(entropy: &Entropy) -> u64 {
    let bits = entropy.bits();
    (bits >> 64) as u64 ^ bits as u64
}
