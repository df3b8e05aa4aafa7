//! LogState that the tasks of an open log share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::sync::lock;
use dq_core::{Clock, Entropy, Error, Listeners, Timestamp};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::cache::MessageCache;
use super::pending::{PendingCall, SentCall};
use super::replica::Replica;
use super::retention::Retention;
use crate::connect::AmqpConnection;
use crate::topology::Topology;

/// Log settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogSettings {
    /// How long a call waits for the broker without progress.
    pub(crate) response_timeout: Duration,
    /// Bytes that the broker keeps.
    pub(crate) size: u64,
}

pub(super) struct LogShared {
    state: Mutex<LogState>,
    /// Signal to the appender: there are unsent calls.
    pub(super) unsent: Notify,
    /// Signal to the appender: sent calls have to be sent again.
    pub(super) resend: Notify,
    /// Signal to the reader: what was sent is not read back.
    pub(super) reader_stuck: Notify,
    /// Signal to the compaction task: a snapshot is due.
    pub(super) snapshot_due: Notify,
    /// Messages read so far.
    pub(super) messages_read: AtomicU64,
    /// Whether a call has been answered since the start of the replay.
    pub(super) caught_up: AtomicBool,
    /// Why the log could not be read or written last; cleared when a call is answered.
    last_error: Mutex<Option<Error>>,
    /// The log holds something that cannot be read: all calls fail.
    fatal: Mutex<Option<Error>>,
    pub(super) closed: AtomicBool,
    pub(super) stop: CancellationToken,
    pub(super) listeners: Arc<Listeners>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<Entropy>,
    pub(super) topology: Arc<Topology>,
    pub(super) publish: Arc<AmqpConnection>,
    pub(super) consume: Arc<AmqpConnection>,
    pub(super) settings: LogSettings,
}

pub(super) struct LogState {
    pub(super) replica: Replica,
    pub(super) unsent: VecDeque<PendingCall>,
    /// Calls that were sent and not read back yet, by sequence number.
    pub(super) sent: VecDeque<SentCall>,
    /// Approximate bytes of all pending calls, sent or not.
    pub(super) pending_bytes: usize,
    pub(super) producer_id: u64,
    pub(super) next_sequence: u64,
    /// The log has lost entries of this producer that were applied before, so the sequence cannot
    /// go on.
    pub(super) sequence_lost: bool,
    /// Offset of the message to be read next; `None` before the first.
    pub(super) next_offset: Option<u64>,
    pub(super) cache: MessageCache,
    pub(super) retention: Retention,
}

impl LogState {
    /// Whether a snapshot is due, and none is in progress.
    pub(super) fn wants_snapshot(&mut self, now: Timestamp) -> bool {
        let jobs = self.replica.machine().len();
        self.retention.wants_snapshot(jobs, now)
    }
}

impl LogShared {
    pub(super) fn new(
        settings: LogSettings,
        environment: &Environment,
        topology: Arc<Topology>,
        publish: Arc<AmqpConnection>,
        consume: Arc<AmqpConnection>,
        listeners: Arc<Listeners>,
    ) -> Self {
        let state = LogState {
            replica: Replica::unread(),
            unsent: VecDeque::new(),
            sent: VecDeque::new(),
            pending_bytes: 0,
            producer_id: random_id(&environment.entropy),
            next_sequence: 1,
            sequence_lost: false,
            next_offset: None,
            cache: MessageCache::default(),
            retention: Retention::unread(settings.size),
        };
        Self {
            state: Mutex::new(state),
            unsent: Notify::new(),
            resend: Notify::new(),
            reader_stuck: Notify::new(),
            snapshot_due: Notify::new(),
            messages_read: AtomicU64::new(0),
            caught_up: AtomicBool::new(false),
            last_error: Mutex::default(),
            fatal: Mutex::default(),
            closed: AtomicBool::new(false),
            stop: CancellationToken::new(),
            listeners,
            clock: Arc::clone(&environment.clock),
            entropy: Arc::clone(&environment.entropy),
            topology,
            publish,
            consume,
            settings,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, LogState> {
        lock(&self.state)
    }

    /// Records why the log cannot be read or written now. A retryable error does not replace one
    /// that is not, since that one says more.
    pub(super) fn record_error(&self, error: Error) {
        let mut last = lock(&self.last_error);
        if last.as_ref().is_none_or(Error::is_retryable) {
            *last = Some(error);
        }
    }

    pub(super) fn clear_error(&self) {
        lock(&self.last_error).take();
    }

    /// The last error, as an error of `operation`, if repeating the call cannot help.
    pub(super) fn permanent_error(&self, operation: &'static str) -> Option<Error> {
        let last = lock(&self.last_error);
        last.as_ref().filter(|error| !error.is_retryable()).map(|error| of(operation, error))
    }

    /// Fails all calls, present and future.
    pub(super) fn fail(&self, error: Error) {
        tracing::error!(%error, "the log cannot be read any further");
        *lock(&self.fatal) = Some(error);
        let mut state = self.state();
        state.unsent.clear();
        state.pending_bytes = 0;
        state.sent.clear();
    }

    /// Why all calls fail, as an error of `operation`.
    pub(super) fn fatal_error(&self, operation: &'static str) -> Option<Error> {
        lock(&self.fatal).as_ref().map(|error| of(operation, error))
    }

    /// Declares the log again, in case it was deleted. `false` if that failed, which is recorded.
    pub(super) async fn redeclare(&self) -> bool {
        match self.topology.redeclare().await {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, "the log cannot be declared now");
                self.record_error(error);
                false
            }
        }
    }

    /// Connects to another node, if the server has several.
    pub(super) fn switch_node(&self) {
        if self.publish.skip_node() {
            tracing::warn!("the node makes no progress; another one is tried");
            self.publish.reconnect();
            self.consume.reconnect();
        }
    }
}

/// The same error, of another operation: [`Error::operation`] keeps the first.
fn of(operation: &'static str, error: &Error) -> Error {
    let copy = Error::new(error.kind(), error.message().to_owned()).operation(operation);
    match error.remedy_text() {
        Some(remedy) => copy.remedy(remedy.to_owned()),
        None => copy,
    }
}

pub(super) fn random_id(entropy: &Entropy) -> u64 {
    let bits = entropy.bits();
    (bits >> 64) as u64 ^ bits as u64
}
