//! State that the tasks of an open log share: the replica, the calls that wait to be appended or to
//! be read back, the signals between the tasks, and the last errors.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{Clock, Entropy, Error, ErrorKind, HistoryLimits, Listeners, Result, Timestamp};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::cache::MessageCache;
use super::lost::LostPayloads;
use super::pending::{NoCaller, PendingCall, SentCall};
use super::read_before::ReadBefore;
use super::replica::Replica;
use super::retention::Retention;
use super::skew::ClockSkews;
use super::skipped::{SkippedMessages, SuspectMessages};
use super::wire;
use crate::buffer::PayloadBuffer;
use crate::connect::AmqpConnection;
use crate::error::LostReply;
use crate::generation::{DirectoryView, Generation};
use crate::topology::Topology;

/// A snapshot may take a fifth of the log's size.
const CAPACITY_PART: u64 = 5;

/// Log settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogSettings {
    /// After this long without progress, a call fails.
    pub(crate) response_timeout: Duration,
    /// The size that the log should have, in bytes.
    pub(crate) size: u64,
}

/// What a log takes from the backend when it is opened.
pub(crate) struct LogContext {
    pub(crate) settings: LogSettings,
    /// The history limits of this process.
    pub(crate) history: HistoryLimits,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<Entropy>,
    pub(crate) topology: Arc<Topology>,
    /// Appends entries.
    pub(crate) publish: Arc<AmqpConnection>,
    /// Reads entries.
    pub(crate) consume: Arc<AmqpConnection>,
    /// Woken when a job is due earlier than all others of its queue.
    pub(crate) listeners: Arc<Listeners>,
    /// Gets the payloads of waiting jobs that are read on the way.
    pub(crate) payloads: Arc<PayloadBuffer>,
}

/// Everything that the tasks of an open log and its callers share.
pub(super) struct LogShared {
    state: Mutex<LogState>,
    pub(super) payloads: Arc<PayloadBuffer>,
    /// Signal to `append`: there may be unsent calls.
    pub(super) call_submitted: Notify,
    /// Signal to `append`: an entry of this producer is missing before others of its entries.
    pub(super) has_gap: Notify,
    /// Signal to `append`: entries have been read back.
    pub(super) read_back: Notify,
    /// Signal to `tail`: the broker has confirmed entries that are not read back, so the consumer
    /// has to be restarted.
    pub(super) reader_stuck: Notify,
    /// Signal to `append`: the log goes on in another generation, into which calls that were not read
    /// back have to be written again.
    pub(super) moved: Notify,
    /// Signal to `compaction`: the generation is to be closed, or needs a snapshot.
    pub(super) compaction_due: Notify,
    /// Number of messages read so far. If it grows, a replay makes progress.
    pub(super) messages_read: AtomicU64,
    /// Whether the replay is over: an entry of this producer has been read back since it started.
    pub(super) caught_up: AtomicBool,
    /// Whether the log has gone on in another generation since an entry of this producer was read
    /// back, so that this process may be far behind.
    pub(super) may_be_behind: AtomicBool,
    /// Why the log could not be read or written last; cleared when a call completes.
    last_error: Mutex<Option<Error>>,
    /// Why this process can use the log no more: it holds an entry that cannot be decoded, or this
    /// version is refused. All calls fail with this error.
    fatal: Mutex<Option<Error>>,
    /// A loss of acknowledged entries, which the next claim returns, so that the runner tells its observers.
    pub(super) untold_loss: Mutex<Option<Error>>,
    pub(super) closed: AtomicBool,
    pub(super) stop: CancellationToken,
    pub(super) listeners: Arc<Listeners>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<Entropy>,
    pub(super) topology: Arc<Topology>,
    pub(super) publish: Arc<AmqpConnection>,
    pub(super) consume: Arc<AmqpConnection>,
    pub(super) settings: LogSettings,
    /// The history limits of this process.
    pub(super) history_limits: wire::HistoryLimits,
    /// The step of a change of generation after which this process does nothing any more.
    #[cfg(test)]
    pub(super) crash_at: Mutex<Option<&'static str>>,
    /// While a test holds this, the process reads no generation that it has not begun to read.
    #[cfg(test)]
    pub(super) may_begin_to_read: Arc<tokio::sync::Mutex<()>>,
}

impl LogSettings {
    /// What a snapshot may take, in bytes.
    pub(super) fn capacity(&self) -> u64 {
        self.size / CAPACITY_PART
    }
}

/// The replica, and the calls that wait for their entries to be applied to it.
pub(super) struct LogState {
    pub(super) replica: Replica,
    pub(super) read_before: ReadBefore,
    /// Calls whose entries have not been sent to the broker, oldest first.
    pub(super) unsent_calls: VecDeque<PendingCall>,
    /// Calls whose entries were sent to the broker and have not been read back, in order of their
    /// sequence numbers.
    pub(super) sent_calls: VecDeque<SentCall>,
    /// Approximate bytes of all pending calls, sent or not.
    pub(super) pending_bytes: usize,
    /// Approximate bytes of the sent calls.
    pub(super) sent_bytes: usize,
    /// Identifies this open log as the writer of its entries.
    pub(super) producer_id: u64,
    /// The sequence number of the next entry.
    pub(super) next_sequence: u64,
    /// The log has lost entries of this producer that were applied before and cannot be sent again,
    /// so the next rewrite has to begin a new sequence with a new producer id.
    pub(super) sequence_lost: bool,
    /// The entries of this producer from this one on were written after the last replay began: what is
    /// read of earlier ones may be old copies.
    pub(super) fresh_from: u64,
    /// The generation that is read and written; `None` until the directory has named one.
    pub(super) generation: Option<Generation>,
    /// The generation into which all calls that were sent and not read back were written, or a
    /// probe of them.
    pub(super) written: Option<Generation>,
    /// The newest generation that this process has announced, or taken from the directory as the one to
    /// read. It limits what `compaction` announces and deletes.
    pub(super) announced: Option<Generation>,
    pub(super) directory: DirectoryView,
    /// The newest generation of the last view of the directory that had one. Kept if the directory is
    /// empty later, so that `locate` can announce it again.
    pub(super) named: Option<Generation>,
    /// All of the generation was read, and there was no snapshot in it.
    pub(super) is_cut_off: bool,
    /// Offset of the message to be read next; `None` before the first.
    pub(super) next_offset: Option<u64>,
    pub(super) cache: MessageCache,
    pub(super) retention: Retention,
    /// Why the last attempt to change the generation failed.
    pub(super) change_failure: Option<Error>,
    pub(super) skipped: SkippedMessages,
    pub(super) suspects: SuspectMessages,
    pub(super) skews: ClockSkews,
    pub(super) lost_payloads: LostPayloads,
}

impl LogState {
    /// Adds a call that is to be appended to the log.
    pub(super) fn enqueue(&mut self, call: PendingCall) {
        self.pending_bytes += call.size;
        self.unsent_calls.push_back(call);
    }

    /// Whether new jobs have to wait for the next generation.
    pub(super) fn blocks_growth(&mut self) -> bool {
        self.follow_size();
        self.retention.blocks_growth()
    }

    /// Uses the size that the log says, once it is known, in place of the setting of this process.
    fn follow_size(&mut self) {
        if let Some(capacity) = self.replica.usage().capacity {
            self.retention.resize(capacity.saturating_mul(CAPACITY_PART));
        }
    }

    /// Adds a barrier to the calls that were sent, before a replay. Its sequence number is the first
    /// of the new ones (`fresh_from`), and `append` sends it behind the calls that it writes again. Until
    /// it has been read back, what is read may be old copies.
    pub(super) fn begin_replay(&mut self, at: Timestamp, submitted: Duration) {
        let command = wire::Command::Barrier;
        let size = command.approx_size();
        let (was_sent, waiter) = (Arc::default(), Box::new(NoCaller));
        let sequence = self.next_sequence;
        self.fresh_from = sequence;
        self.next_sequence += 1;
        self.pending_bytes += size;
        self.sent_bytes += size;
        let call = PendingCall { at, submitted, command, size, was_sent, waiter };
        self.sent_calls.push_back(SentCall { sequence, call });
    }

    /// Whether the generation is to be closed, or needs a snapshot that no process writes.
    pub(super) fn needs_compaction(&mut self, now: Duration) -> bool {
        self.needs_close() || self.retention.needs_snapshot(now)
    }

    /// Whether the generation is to be closed.
    pub(super) fn needs_close(&mut self) -> bool {
        self.follow_size();
        let jobs = self.replica.machine().len();
        self.retention.needs_close(jobs)
    }

    /// The newest generation that this process knows to be complete, or that was named.
    pub(super) fn newest_known(&self) -> Option<Generation> {
        self.named.max(self.generation.filter(|_| self.retention.is_complete()))
    }

    /// Reads and writes this generation from now on, from its beginning.
    pub(super) fn begin_generation(&mut self, generation: Generation, size: u64, now: Duration) {
        self.generation = Some(generation);
        self.is_cut_off = false;
        self.retention = Retention::new(size, generation.begins_empty(), now);
        self.replica.begin_generation();
    }
}

impl LogShared {
    pub(super) fn new(context: LogContext) -> Self {
        let LogContext { settings, history, clock, entropy, topology, .. } = context;
        let LogContext { publish, consume, listeners, payloads, .. } = context;
        let state = LogState {
            replica: Replica::unread(),
            read_before: ReadBefore::default(),
            unsent_calls: VecDeque::new(),
            sent_calls: VecDeque::new(),
            pending_bytes: 0,
            sent_bytes: 0,
            producer_id: random_id(&entropy),
            next_sequence: 1,
            sequence_lost: false,
            fresh_from: 1,
            generation: None,
            written: None,
            announced: None,
            directory: DirectoryView::default(),
            named: None,
            is_cut_off: false,
            next_offset: None,
            cache: MessageCache::default(),
            retention: Retention::new(settings.size, false, clock.elapsed()),
            change_failure: None,
            skipped: SkippedMessages::default(),
            suspects: SuspectMessages::default(),
            skews: ClockSkews::default(),
            lost_payloads: LostPayloads::default(),
        };
        Self {
            state: Mutex::new(state),
            payloads,
            call_submitted: Notify::new(),
            has_gap: Notify::new(),
            read_back: Notify::new(),
            reader_stuck: Notify::new(),
            moved: Notify::new(),
            compaction_due: Notify::new(),
            messages_read: AtomicU64::new(0),
            caught_up: AtomicBool::new(false),
            may_be_behind: AtomicBool::new(false),
            last_error: Mutex::default(),
            fatal: Mutex::default(),
            untold_loss: Mutex::default(),
            closed: AtomicBool::new(false),
            stop: CancellationToken::new(),
            listeners,
            clock,
            entropy,
            topology,
            publish,
            consume,
            settings,
            history_limits: (&history).into(),
            #[cfg(test)]
            crash_at: Mutex::default(),
            #[cfg(test)]
            may_begin_to_read: Arc::default(),
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

    /// The last error, as an error of `operation`, if an operator has to mend it.
    pub(super) fn lasting_error(&self, operation: &'static str) -> Option<Error> {
        let last = lock(&self.last_error);
        last.as_ref()
            .filter(|error| is_lasting(error))
            .map(|error| with_operation(error, operation))
    }

    /// The error of a call that was not sent: there is no generation that it could be written into.
    pub(super) fn unsent_error(&self, operation: &'static str) -> Error {
        let failure = self.state().change_failure.clone();
        match failure {
            Some(error) => with_operation(&error, operation),
            None => self.timeout_error(operation, LostReply::Unavailable),
        }
    }

    /// Fails all calls, present and future.
    pub(super) fn fail(&self, error: Error) {
        tracing::error!(%error, "the log cannot be read any further");
        *lock(&self.fatal) = Some(error);
        let mut state = self.state();
        state.unsent_calls.clear();
        state.pending_bytes = 0;
        state.sent_bytes = 0;
        state.sent_calls.clear();
    }

    /// Why all calls fail, as an error of `operation`.
    pub(super) fn fatal_error(&self, operation: &'static str) -> Option<Error> {
        lock(&self.fatal).as_ref().map(|error| with_operation(error, operation))
    }

    /// Whether each message that is read may bring calls of this process nearer: it replays the
    /// log, or may be behind.
    pub(super) fn is_catching_up(&self) -> bool {
        !self.caught_up.load(Ordering::Relaxed) || self.may_be_behind.load(Ordering::Relaxed)
    }

    /// The generation that is read and written, once it is known.
    pub(super) fn generation(&self) -> Option<Generation> {
        self.state().generation
    }

    /// Declares what the log needs besides its generations, after the broker has answered that some
    /// of it is missing: then everything else may be missing too.
    pub(super) async fn declare_log(&self) -> Result<()> {
        self.topology.report_missing();
        self.topology.declare_log().await
    }

    /// A change of generation has taken this step; tests stop the process there.
    pub(super) async fn reached(&self, step: &'static str) {
        #[cfg(test)]
        if *lock(&self.crash_at) == Some(step) {
            self.stop.cancel();
            std::future::pending::<()>().await;
        }
        tracing::trace!(step, "a change of generation goes on");
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

/// Whether an operator has to mend this.
pub(super) fn is_lasting(error: &Error) -> bool {
    !error.is_retryable() || error.kind() == ErrorKind::Full
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
