//! State that the tasks of an open log share: the replica, the calls that wait to be appended or to
//! be read back, the signals between the tasks, and the last errors.

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
    /// After this long without progress, a call fails.
    pub(crate) response_timeout: Duration,
    /// Maximum size of the log in bytes; the broker deletes the oldest messages beyond it.
    pub(crate) size: u64,
}

/// Everything that the tasks of an open log and its callers share.
pub(super) struct LogShared {
    state: Mutex<LogState>,
    /// Signal to `append`: there may be unsent calls.
    pub(super) call_submitted: Notify,
    /// Signal to `append`: sent calls have to be sent again, because of a gap.
    pub(super) resend: Notify,
    /// Signal to `tail`: the broker has confirmed entries that are not read back, so the consumer
    /// has to be restarted.
    pub(super) reader_stuck: Notify,
    /// Signal to `compaction`: a snapshot is due.
    pub(super) snapshot_due: Notify,
    /// Number of messages read so far. If it grows, a replay makes progress.
    pub(super) messages_read: AtomicU64,
    /// Whether the replay is over: an entry of this producer has been read back since it started.
    pub(super) caught_up: AtomicBool,
    /// Why the log could not be read or written last; cleared when a call completes.
    last_error: Mutex<Option<Error>>,
    /// Set if the log holds an entry that cannot be decoded: all calls fail with this error.
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

/// The replica, and the calls that wait for their entries to be applied to it.
pub(super) struct LogState {
    pub(super) replica: Replica,
    /// Calls whose entries have not been sent to the broker, oldest first.
    pub(super) unsent_calls: VecDeque<PendingCall>,
    /// Calls whose entries were sent to the broker and have not been read back, in order of their
    /// sequence numbers.
    pub(super) sent_calls: VecDeque<SentCall>,
    /// Approximate bytes of all pending calls, sent or not.
    pub(super) pending_bytes: usize,
    /// Identifies this open log as the writer of its entries.
    pub(super) producer_id: u64,
    /// The sequence number of the next entry.
    pub(super) next_sequence: u64,
    /// The log has lost entries of this producer that were applied before and cannot be sent again,
    /// so the next resend has to begin a new sequence with a new producer id.
    pub(super) sequence_lost: bool,
    /// Offset of the message to be read next; `None` before the first.
    pub(super) next_offset: Option<u64>,
    pub(super) cache: MessageCache,
    pub(super) retention: Retention,
}

impl LogState {
    /// Whether a snapshot is due, and none is in progress.
    pub(super) fn needs_snapshot(&mut self, now: Timestamp) -> bool {
        let jobs = self.replica.machine().len();
        self.retention.needs_snapshot(jobs, now)
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
            unsent_calls: VecDeque::new(),
            sent_calls: VecDeque::new(),
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
            call_submitted: Notify::new(),
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

    /// The last error, as an error of `operation`, if it is not retryable.
    pub(super) fn permanent_error(&self, operation: &'static str) -> Option<Error> {
        let last = lock(&self.last_error);
        last.as_ref()
            .filter(|error| !error.is_retryable())
            .map(|error| with_operation(error, operation))
    }

    /// Fails all calls, present and future.
    pub(super) fn fail(&self, error: Error) {
        tracing::error!(%error, "the log cannot be read any further");
        *lock(&self.fatal) = Some(error);
        let mut state = self.state();
        state.unsent_calls.clear();
        state.pending_bytes = 0;
        state.sent_calls.clear();
    }

    /// Why all calls fail, as an error of `operation`.
    pub(super) fn fatal_error(&self, operation: &'static str) -> Option<Error> {
        lock(&self.fatal).as_ref().map(|error| with_operation(error, operation))
    }

    /// Declares all queues and exchanges again, in case the log was deleted. Returns `false` and
    /// records the error if that fails.
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

/// A copy of an error that names another operation. [`Error::operation`] would keep the first name.
fn with_operation(error: &Error, operation: &'static str) -> Error {
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
