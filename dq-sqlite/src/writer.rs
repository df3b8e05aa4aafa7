//! The writer thread: group commit.
//!
//! While a transaction is being synced to the disk, tasks accumulate in the channel; the next
//! transaction takes all of them. There is no timer: a single caller pays one sync per call, and
//! concurrent callers share one.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use dq_core::config::Environment;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use crate::config::SqliteConfig;
use crate::connection::{self, OpenMode};
use crate::error::{StoreError, StoreResult};
use crate::maintenance;
use crate::other_writers::{OtherWriters, notify_all};
use crate::shared::StoreShared;
use crate::statements::Statements;
use crate::store_file::StoreFile;
use crate::task::{Access, SendReply, TaskQueue, Weight, WriterMessage};
use crate::write_tx::{Changes, QueueIds, WriteTx};

/// A transaction with this many items takes no further tasks. Less than the chunks of a long batch
/// (`CHUNK_ITEMS` in `backend.rs`), each of which therefore runs alone.
const GROUP_ITEMS: usize = 512;

/// A transaction with jobs of this size takes no further tasks.
const GROUP_BYTES: usize = 4 * 1024 * 1024;

/// How often an idle writer polls for commits of other connections. A poll reads a number in shared
/// memory and costs a microsecond.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// How often the writer tries to take the write lock while another connection holds it. SQLite's own
/// handler sleeps for up to 100 ms, and so misses a lock that is free for some milliseconds at a
/// time. A try costs some microseconds.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Pause between two transactions while other connections want to write too. SQLite's waiters sleep
/// and retry; without a pause they would never find the lock free.
const YIELD_PAUSE: Duration = Duration::from_millis(1);

/// How long after their last commit other connections are expected to write again.
const OTHERS_ACTIVE_FOR: Duration = Duration::from_secs(10);

/// How long after the last write maintenance begins.
const MAINTENANCE_DELAY: Duration = Duration::from_millis(200);

/// The writer's connection to the file, and what was read when it was opened.
struct Session {
    conn: Connection,
    other_writers: OtherWriters,
}

impl Session {
    /// Opens the store again after a failed commit or rollback; never creates it.
    fn reopen(shared: &StoreShared) -> StoreResult<Self> {
        shared.verify_file()?;
        let session = Self::connect(&shared.config, OpenMode::Again)?;
        shared.verify_opened(&session.conn)?;
        Ok(session)
    }

    fn connect(config: &SqliteConfig, mode: OpenMode) -> StoreResult<Self> {
        let conn = connection::open_writer(config, mode)?;
        let other_writers = OtherWriters::observe(&conn)?;
        // From now on the writer itself waits for the lock, and accepts tasks meanwhile.
        conn.busy_timeout(Duration::ZERO)?;
        Ok(Self { conn, other_writers })
    }
}

/// Opens the store for the first time.
fn open_store(
    mut config: SqliteConfig,
    mode: OpenMode,
    environment: Environment,
) -> StoreResult<(Session, Arc<StoreShared>)> {
    config.path = connection::absolute_path(&config.path)?;
    let statements = Statements::new(&config.table_prefix);
    let session = Session::connect(&config, mode)?;
    let file = StoreFile::of(&session.conn, &statements, &config.path)?;
    Ok((session, Arc::new(StoreShared::new(config, statements, environment, file))))
}

/// State of the writer thread.
pub(crate) struct Writer {
    shared: Arc<StoreShared>,
    messages: Receiver<WriterMessage>,
    /// `None` after a failed commit or rollback, until the file is open again.
    session: Option<Session>,
    queue_ids: QueueIds,
    /// Tasks that were taken from the channel and have not run.
    pending: TaskQueue,
    /// Set by [`WriterMessage::Close`]: confirms the end of the thread.
    closing: Option<oneshot::Sender<()>>,
    /// When a commit of another connection was last detected.
    others_last_seen: Option<Instant>,
    /// Whether listeners still have to be notified of a commit of others. Kept until they are:
    /// SQLite reports a commit once, and the transaction that observed it may fail.
    listeners_outdated: bool,
    last_write: Instant,
    /// Whether maintenance may have pages to free.
    needs_maintenance: bool,
}

impl Writer {
    /// Opens the store, reports the result to `opened`, and runs tasks until the store is closed or
    /// all senders are dropped.
    pub(crate) fn run(
        config: SqliteConfig,
        mode: OpenMode,
        environment: Environment,
        messages: Receiver<WriterMessage>,
        opened: oneshot::Sender<StoreResult<Arc<StoreShared>>>,
    ) {
        let (session, shared) = match open_store(config, mode, environment) {
            Ok(store) => store,
            Err(error) => {
                // The caller may have stopped waiting.
                let _ = opened.send(Err(error));
                return;
            }
        };
        if opened.send(Ok(Arc::clone(&shared))).is_err() {
            return;
        }
        let writer = Self {
            shared,
            messages,
            session: Some(session),
            queue_ids: QueueIds::default(),
            pending: TaskQueue::default(),
            closing: None,
            others_last_seen: None,
            listeners_outdated: false,
            last_write: Instant::now(),
            needs_maintenance: true,
        };
        writer.run_tasks();
    }

    fn run_tasks(mut self) {
        while self.wait() {
            self.gather();
            while !self.pending.is_empty() {
                self.run_transaction();
            }
            if self.closing.is_some() {
                break;
            }
        }
        self.close();
    }

    /// Waits for a message. Meanwhile it polls if there are listeners or maintenance is due.
    /// Returns `false` when all senders are dropped.
    fn wait(&mut self) -> bool {
        loop {
            let message = if self.needs_maintenance || !self.shared.listeners.is_empty() {
                self.messages.recv_timeout(POLL_INTERVAL)
            } else {
                self.messages.recv().map_err(RecvTimeoutError::from)
            };
            match message {
                Ok(message) => {
                    self.accept(message);
                    return true;
                }
                Err(RecvTimeoutError::Timeout) => self.poll(),
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn accept(&mut self, message: WriterMessage) {
        match message {
            WriterMessage::Task(task) => self.pending.push(task),
            WriterMessage::ListenerAdded => {}
            WriterMessage::Close(done) => self.closing = Some(done),
        }
    }

    /// Takes all tasks from the channel.
    fn gather(&mut self) {
        while self.closing.is_none()
            && let Ok(message) = self.messages.try_recv()
        {
            self.accept(message);
        }
    }

    /// Runs one transaction over the pending tasks. After a failure the remaining tasks stay
    /// pending for the next transaction.
    fn run_transaction(&mut self) {
        self.yield_to_other_writers();
        let mut replies = Vec::new();
        let result = self.try_transaction(&mut replies);
        self.last_write = Instant::now();
        self.needs_maintenance = true;
        match result {
            Ok(Changes { wakeups, .. }) => {
                for (queue, due) in wakeups {
                    self.shared.listeners.wake(&queue, due);
                }
                replies.into_iter().for_each(|reply| reply(None));
            }
            Err(error) => {
                self.queue_ids.clear();
                tracing::warn!(%error, "a transaction failed");
                replies.into_iter().for_each(|reply| reply(Some(&error)));
            }
        }
        self.notify_of_other_writers();
    }

    /// Begins a transaction, runs tasks and commits. `replies` gets the reply of each task that has
    /// run, which on an error are the tasks that fail. If the transaction could not begin, all
    /// pending tasks are rejected.
    fn try_transaction(&mut self, replies: &mut Vec<SendReply>) -> StoreResult<Changes> {
        let result = self.begin().and_then(|()| self.run_pending(replies));
        match result {
            Ok(changes) => self.commit(&changes).map(|()| changes),
            Err(error) => {
                self.roll_back();
                if replies.is_empty() {
                    while let Some(task) = self.pending.pop() {
                        task.task.reject(error.clone());
                    }
                }
                Err(error)
            }
        }
    }

    fn run_pending(&mut self, replies: &mut Vec<SendReply>) -> StoreResult<Changes> {
        let conn = &self.session.as_ref().expect("a transaction was begun on it").conn;
        let now = self.shared.clock.now();
        let tx = WriteTx::begin(conn, &self.shared, &mut self.queue_ids, now)?;
        run_until_failure(tx, &mut self.pending, replies)
    }

    /// Commits. Fails if the path leads to another file by now, so that no write is acknowledged in a
    /// file that is gone.
    fn commit(&mut self, changes: &Changes) -> StoreResult<()> {
        let shared = Arc::clone(&self.shared);
        // During the commit, so that no claim reads the new version of the file before the changes.
        let mut due_index = shared.due_index();
        let conn = &self.session.as_ref().expect("a transaction was begun on it").conn;
        if let Err(error) = execute(conn, "COMMIT") {
            due_index.invalidate();
            // After a failed sync the page cache may differ from the disk, so this connection must
            // not be used again.
            self.session = None;
            return Err(StoreError::from(error).into_commit_error());
        }
        due_index.committed(&changes.next_due, || self.others_have_committed());
        drop(due_index);
        self.shared.verify_file().map_err(StoreError::after_commit)
    }

    fn roll_back(&mut self) {
        let Some(Session { conn, .. }) = &self.session else {
            return;
        };
        // No transaction is open if BEGIN failed, or if SQLite has rolled back by itself.
        if !conn.is_autocommit() && conn.execute_batch("ROLLBACK").is_err() {
            self.session = None;
        }
    }

    /// Begins a transaction, and opens the file first if necessary. Fails if the path leads to
    /// another file by now.
    fn begin(&mut self) -> StoreResult<()> {
        self.reopen()?;
        self.take_lock()?;
        // Not before, since the lock may have been waited for.
        self.shared.verify_file()?;
        self.detect_other_writers();
        Ok(())
    }

    /// Takes the write lock. While another connection holds it, tasks are accepted, so that all that
    /// arrive are in the transaction.
    ///
    /// Rejects each task that has waited for the lock for `busy_timeout`, and fails if none is left.
    fn take_lock(&mut self) -> StoreResult<()> {
        let since = Instant::now();
        loop {
            let conn = &self.session.as_ref().expect("it was just opened").conn;
            let error = match execute(conn, "BEGIN IMMEDIATE") {
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => error,
                result => {
                    self.gather();
                    return Ok(result?);
                }
            };
            self.reject_timed_out(since, error.into())?;
            match self.messages.recv_timeout(LOCK_POLL_INTERVAL) {
                Ok(message) => self.accept(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOCK_POLL_INTERVAL),
            }
        }
    }

    /// Rejects the tasks that have waited for the lock, since then or since they arrived, for
    /// `busy_timeout`; fails if none is left.
    fn reject_timed_out(&mut self, since: Instant, busy: StoreError) -> StoreResult<()> {
        let timeout = self.shared.config.busy_timeout;
        while let Some(task) = self.pending.pop_waiting_for(timeout, since) {
            task.task.reject(busy.clone());
        }
        if self.pending.is_empty() { Err(busy) } else { Ok(()) }
    }

    /// Opens the file again after a failed commit or rollback.
    fn reopen(&mut self) -> StoreResult<()> {
        if self.session.is_none() {
            self.session = Some(Session::reopen(&self.shared)?);
            // A new connection does not report commits from before it was opened.
            self.listeners_outdated = true;
            self.shared.due_index().invalidate();
        }
        Ok(())
    }

    /// Records whether another connection has committed since the last call.
    fn detect_other_writers(&mut self) {
        if self.others_have_committed() {
            self.shared.due_index().invalidate();
        }
    }

    /// Whether another connection has committed since the last call, or may have.
    fn others_have_committed(&mut self) -> bool {
        let Some(session) = &mut self.session else {
            return true;
        };
        // After an error the next poll detects the commit.
        let committed = session.other_writers.have_committed(&session.conn);
        if let Ok(true) = committed {
            self.others_last_seen = Some(Instant::now());
            self.listeners_outdated = true;
        }
        committed.unwrap_or(true)
    }

    /// Notifies listeners if another connection has committed since they were last notified.
    fn notify_of_other_writers(&mut self) {
        let Some(session) = self.session.as_ref().filter(|_| self.listeners_outdated) else {
            return;
        };
        match notify_all(&self.shared, &session.conn) {
            Ok(()) => self.listeners_outdated = false,
            Err(error) => {
                tracing::debug!(%error, "listeners could not be notified of another connection's commit");
            }
        }
    }

    /// Leaves the write lock free for a moment after the last transaction if other connections write
    /// too.
    fn yield_to_other_writers(&mut self) {
        let others_active =
            self.others_last_seen.is_some_and(|seen| seen.elapsed() < OTHERS_ACTIVE_FOR);
        let pause = YIELD_PAUSE.saturating_sub(self.last_write.elapsed());
        if others_active && !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }

    /// Runs while there are no tasks: detects commits of others and frees pages.
    fn poll(&mut self) {
        if self.reopen().is_err() {
            // The next call reports the error. Until then only listeners are a reason to retry.
            self.needs_maintenance = false;
            return;
        }
        self.detect_other_writers();
        self.notify_of_other_writers();
        if self.needs_maintenance && self.last_write.elapsed() >= MAINTENANCE_DELAY {
            self.maintain();
        }
    }

    /// Runs one step of maintenance.
    fn maintain(&mut self) {
        let Some(session) = &self.session else {
            return;
        };
        // After an error (busy, disk full) the next write sets the flag again.
        self.needs_maintenance = maintenance::vacuum_step(&session.conn).unwrap_or(false);
    }

    /// Closes the connection and confirms the end of the thread.
    fn close(mut self) {
        if let Some(Session { conn, .. }) = self.session.take() {
            // Fails while other connections are active; they or the next one checkpoint the log.
            let _ = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            drop(conn);
        }
        if let Some(done) = self.closing.take() {
            // The caller may have stopped waiting.
            let _ = done.send(());
        }
    }
}

/// Runs pending tasks in one transaction, up to the first failure: a full disk makes SQLite roll
/// back the whole transaction, so the remaining tasks run in the next one. A task that fills a
/// transaction runs alone, since it is the most likely one not to fit on the disk. Tasks that this
/// version of the library may not run any more are rejected, and the others run.
fn run_until_failure(
    mut tx: WriteTx<'_>,
    pending: &mut TaskQueue,
    replies: &mut Vec<SendReply>,
) -> StoreResult<Changes> {
    let mut sum = Weight::default();
    while !fills_a_transaction(sum)
        && let Some(task) = pending.pop()
    {
        if task.access == Access::Write
            && let Err(error) = tx.check_writer()
        {
            task.task.reject(error);
            continue;
        }
        if fills_a_transaction(task.weight) && !replies.is_empty() {
            pending.put_back(task);
            break;
        }
        sum.add(task.weight);
        let (reply, error) = task.task.run(&mut tx);
        replies.push(reply);
        if let Some(error) = error {
            // The failed call replies with its own error; this one is for the others.
            return Err(error.for_other_calls());
        }
    }
    tx.finish()
}

const fn fills_a_transaction(weight: Weight) -> bool {
    weight.items >= GROUP_ITEMS || weight.bytes >= GROUP_BYTES
}

fn execute(conn: &Connection, sql: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(sql)?.execute([]).map(drop)
}
