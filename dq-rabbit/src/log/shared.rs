//! The tasks' common state: the replica, pending calls, signals and errors.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{Clock, Entropy, Error, ErrorKind, HistoryLimits, JobId, Listeners, Result};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::cache::MessageCache;
use super::generation::retention::Retention;
use super::generation::{DirectoryView, Generation};
use super::pending::Outbox;
use super::read_before::ReadBefore;
use super::skipped::{SkippedMessages, SuspectMessages};
use super::state::replica::Replica;
use super::wire;
use crate::connect::AmqpConnection;
use crate::error::copy;
use crate::payloads::buffer::PayloadBuffer;
use crate::topology::Topology;

/// A snapshot may take a fifth of the log's size.
const CAPACITY_PART: u64 = 5;

/// Further jobs with a lost payload are not counted.
const MAX_LOST_PAYLOADS: usize = 1_000;

pub(crate) struct LogContext {
    /// A call fails after this long without progress.
    pub(crate) response_timeout: Duration,
    /// The log's intended size in bytes.
    pub(crate) log_size: u64,
    pub(crate) history: HistoryLimits,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<Entropy>,
    pub(crate) topology: Arc<Topology>,
    pub(crate) publish: Arc<AmqpConnection>,
    pub(crate) consume: Arc<AmqpConnection>,
    /// Woken when a queue's next due time is earlier.
    pub(crate) listeners: Arc<Listeners>,
    /// Keeps the payloads of jobs due soon that are read beside the requested ones.
    pub(crate) payloads: Arc<PayloadBuffer>,
}

pub(crate) struct LogShared {
    state: Mutex<LogState>,
    pub(super) payloads: Arc<PayloadBuffer>,
    /// To `append`: there may be unsent calls.
    pub(super) call_submitted: Notify,
    /// To `append`: an entry is missing before this producer's others.
    pub(super) has_gap: Notify,
    /// To `append`: entries were read back.
    pub(super) read_back: Notify,
    /// To `tail`: confirmed entries are not read back, so the consumer has to restart.
    pub(super) reader_stuck: Notify,
    /// To `append`: the log goes on in another generation, where calls that were not read back are
    /// written again.
    pub(super) moved: Notify,
    /// To `compaction`: close the generation, or write its snapshot.
    pub(super) compaction_due: Notify,
    /// A replay makes progress while this grows.
    pub(super) messages_read: AtomicU64,
    /// The replay is over: an own entry was read back since it began.
    pub(super) caught_up: AtomicBool,
    /// The generation has changed since an own entry was read back, so this process may be far
    /// behind.
    pub(super) may_be_behind: AtomicBool,
    /// The last cause of a failure; `None` again when a call completes.
    pub(super) last_error: Mutex<Option<Error>>,
    /// The reason why this process can no longer use the log. All calls fail with it.
    fatal: Mutex<Option<Error>>,
    /// A loss, which the next claim returns to the runner.
    pub(super) untold_loss: Mutex<Option<Error>>,
    pub(super) closed: AtomicBool,
    pub(super) stop: CancellationToken,
    pub(super) listeners: Arc<Listeners>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<Entropy>,
    pub(super) topology: Arc<Topology>,
    pub(super) publish: Arc<AmqpConnection>,
    pub(super) consume: Arc<AmqpConnection>,
    pub(super) response_timeout: Duration,
    pub(super) log_size: u64,
    pub(super) history_limits: wire::HistoryLimits,
    /// A test stops this process after this step.
    #[cfg(test)]
    pub(super) crash_at: Mutex<Option<&'static str>>,
    /// A test holds this to keep the process from beginning to read a generation.
    #[cfg(test)]
    pub(super) may_begin_to_read: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
pub(super) struct LogState {
    pub(super) replica: Replica,
    pub(super) read_before: ReadBefore,
    pub(super) outbox: Outbox,
    /// The generation that is read and written; `None` until the directory has named one.
    pub(super) generation: Option<Generation>,
    /// The newest generation that this process has announced or found in the directory. Limits
    /// `compaction`.
    pub(super) announced: Option<Generation>,
    pub(super) directory: DirectoryView,
    /// The newest generation that the directory ever named, so that `locate` can announce it again.
    pub(super) named: Option<Generation>,
    /// The whole generation was read, without a snapshot.
    pub(super) lacks_snapshot: bool,
    /// Where the next message is read; `None` before the first one.
    pub(super) next_offset: Option<u64>,
    pub(super) cache: MessageCache,
    pub(super) retention: Retention,
    /// Why the last change of generation failed.
    pub(super) change_failure: Option<Error>,
    pub(super) skipped: SkippedMessages,
    pub(super) suspects: SuspectMessages,
    pub(super) lost_payloads: BTreeSet<JobId>,
}

impl LogState {
    pub(super) fn add_lost_payload(&mut self, job: JobId) {
        if self.lost_payloads.len() < MAX_LOST_PAYLOADS && self.lost_payloads.insert(job) {
            tracing::error!(id = %job, "the log does not have the payload of a job any more");
        }
    }

    pub(super) fn blocks_growth(&mut self) -> bool {
        self.follow_size();
        self.retention.blocks_growth()
    }

    /// The log's size counts, once known, not this process's setting.
    fn follow_size(&mut self) {
        if let Some(capacity) = self.replica.usage().capacity {
            self.retention.size = capacity.saturating_mul(CAPACITY_PART);
        }
    }

    pub(super) fn needs_compaction(&mut self, now: Duration) -> bool {
        self.needs_close() || self.retention.needs_snapshot(now)
    }

    pub(super) fn needs_close(&mut self) -> bool {
        self.follow_size();
        let jobs = self.replica.machine().len();
        self.retention.needs_close(jobs)
    }

    pub(super) fn newest_known(&self) -> Option<Generation> {
        self.named.max(self.generation.filter(|_| self.retention.is_complete()))
    }

    pub(super) fn begin_generation(&mut self, generation: Generation, size: u64, now: Duration) {
        self.generation = Some(generation);
        self.lacks_snapshot = false;
        self.retention = Retention::new(size, generation.begins_empty(), now);
        self.replica.begin_generation();
    }
}

impl LogShared {
    pub(super) fn new(context: LogContext) -> Self {
        let LogContext { response_timeout, log_size, history, clock, entropy, .. } = context;
        let LogContext { topology, publish, consume, listeners, payloads, .. } = context;
        let state = LogState {
            outbox: Outbox::new(random_id(&entropy)),
            retention: Retention::new(log_size, false, clock.elapsed()),
            ..LogState::default()
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
            response_timeout,
            log_size,
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

    pub(super) fn capacity(&self) -> u64 {
        self.log_size / CAPACITY_PART
    }

    /// An error that may pass does not replace a lasting one, which says more.
    pub(super) fn record_error(&self, error: Error) {
        let mut last = lock(&self.last_error);
        if is_lasting(&error) || !last.as_ref().is_some_and(is_lasting) {
            *last = Some(error);
        }
    }

    /// Fails all calls, present and future.
    pub(super) fn fail(&self, error: Error) {
        tracing::error!(%error, "the log cannot be read any further");
        *lock(&self.fatal) = Some(error);
        self.state().outbox.clear();
    }

    pub(crate) fn failure(&self, operation: &'static str) -> Option<Error> {
        lock(&self.fatal).as_ref().map(|error| copy(error, error.kind(), operation))
    }

    /// Whether each message may bring own calls nearer.
    pub(super) fn is_catching_up(&self) -> bool {
        !self.caught_up.load(Ordering::Relaxed) || self.may_be_behind.load(Ordering::Relaxed)
    }

    pub(crate) fn generation(&self) -> Option<Generation> {
        self.state().generation
    }

    /// Declares the log's objects. If one of them is missing, others may be too.
    pub(super) async fn declare_log(&self) -> Result<()> {
        self.topology.report_missing();
        self.topology.declare_log().await
    }

    /// Stops the process here if a test has chosen this step of a change of generation.
    pub(super) async fn reached(&self, step: &'static str) {
        #[cfg(test)]
        if *lock(&self.crash_at) == Some(step) {
            self.stop.cancel();
            std::future::pending::<()>().await;
        }
        tracing::trace!(step, "a change of generation goes on");
    }

    pub(super) fn switch_node(&self) {
        if self.publish.skip_node() {
            tracing::warn!("the node makes no progress; another one is tried");
            self.publish.reconnect();
            self.consume.reconnect();
        }
    }
}

/// Whether an error lasts until somebody acts. `Full` does, although it is retryable.
pub(super) fn is_lasting(error: &Error) -> bool {
    !error.is_retryable() || error.kind() == ErrorKind::Full
}

pub(super) fn random_id(entropy: &Entropy) -> u64 {
    let bits = entropy.bits();
    (bits >> 64) as u64 ^ bits as u64
}
