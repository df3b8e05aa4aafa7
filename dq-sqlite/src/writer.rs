//! The writer thread: group commit.
//!
//! While a transaction is being synced to the disk, tasks accumulate in the channel; the next
//! transaction takes all of them. There is no timer: a single caller pays one sync per call, and
//! concurrent callers share one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::connection;
use crate::error::{StoreError, StoreResult};
use crate::maintenance;
use crate::other_writers::{OtherWriters, notify_all};
use crate::shared::{StoreId, StoreShared};
use crate::task::{QueuedTask, SendReply, Weight, WriterMessage};
use crate::write_tx::{QueueIds, QueueWakeup, WriteTx};

/// A transaction with this many items takes no further tasks.
const GROUP_ITEMS: usize = 512;

/// A transaction with jobs of this size takes no further tasks.
const GROUP_BYTES: usize = 4 * 1024 * 1024;

/// How often an idle writer polls for commits of other connections. A poll reads a number in shared
/// memory and costs a microsecond.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

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
    store_id: StoreId,
}

impl Session {
    fn open(shared: &StoreShared) -> StoreResult<Self> {
        let conn = connection::open_writer(&shared.config)?;
        let other_writers = OtherWriters::observe(&conn)?;
        let store_id = conn.query_row(&shared.statements.meta, [], |row| row.get(3))?;
        Ok(Self { conn, other_writers, store_id })
    }
}

/// State of the writer thread.
pub(crate) struct Writer {
    shared: Arc<StoreShared>,
    messages: Receiver<WriterMessage>,
    /// `None` after a failed commit, until the file is open again.
    session: Option<Session>,
    queue_ids: QueueIds,
    /// Tasks that were taken from the channel and have not run.
    pending: VecDeque<QueuedTask>,
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
    /// Opens the file, reports the result to `opened`, and runs tasks until the store is closed or
    /// all senders are dropped.
    pub(crate) fn run(
        shared: Arc<StoreShared>,
        messages: Receiver<WriterMessage>,
        opened: oneshot::Sender<StoreResult<StoreId>>,
    ) {
        let session = match Session::open(&shared) {
            Ok(session) => session,
            Err(error) => {
                // The caller may have stopped waiting.
                let _ = opened.send(Err(error));
                return;
            }
        };
        if opened.send(Ok(session.store_id)).is_err() {
            return;
        }
        let writer = Self {
            shared,
            messages,
            session: Some(session),
            queue_ids: QueueIds::default(),
            pending: VecDeque::new(),
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
            WriterMessage::Task(task) => self.pending.push_back(task),
            WriterMessage::ListenerAdded => {}
            WriterMessage::Close(done) => self.closing = Some(done),
        }
    }

    /// Takes tasks from the channel until one transaction is full.
    fn gather(&mut self) {
        let mut sum = Weight::default();
        for task in &self.pending {
            sum.add(task.weight);
        }
        while !fills_a_transaction(sum) && self.closing.is_none() {
            let Ok(message) = self.messages.try_recv() else {
                break;
            };
            if let WriterMessage::Task(task) = &message {
                sum.add(task.weight);
            }
            self.accept(message);
        }
        // Taken tasks no longer count against the channel's bound.
        for task in &mut self.pending {
            task.slot = None;
        }
    }

    /// Runs one transaction over the pending tasks. After a failure the remaining tasks stay
    /// pending for the next transaction.
    fn run_transaction(&mut self) {
        let mut replies = Vec::with_capacity(self.pending.len());
        let result = self.try_transaction(&mut replies);
        self.last_write = Instant::now();
        self.needs_maintenance = true;
        match result {
            Ok(wakeups) => {
                for (queue, due) in wakeups {
                    self.shared.listeners.wake(&queue, due);
                }
                replies.into_iter().for_each(|reply| reply(None));
            }
            Err(error) => {
                self.queue_ids.clear();
                tracing::warn!(%error, calls = replies.len(), "a transaction failed");
                replies.into_iter().for_each(|reply| reply(Some(&error)));
            }
        }
        self.notify_of_other_writers();
        self.yield_to_other_writers();
    }

    /// Begins a transaction, runs tasks and commits. `replies` gets the reply of each task that was
    /// taken from `pending`: on an error those are the tasks that fail, which are all pending ones
    /// if the transaction could not begin.
    fn try_transaction(&mut self, replies: &mut Vec<SendReply>) -> StoreResult<Vec<QueueWakeup>> {
        let result = self.begin().and_then(|()| self.run_pending(replies));
        match result {
            Ok(wakeups) => self.commit().map(|()| wakeups),
            Err(error) => {
                self.roll_back();
                if replies.is_empty() {
                    replies.extend(self.pending.drain(..).map(|task| task.task.reject()));
                }
                Err(error)
            }
        }
    }

    fn run_pending(&mut self, replies: &mut Vec<SendReply>) -> StoreResult<Vec<QueueWakeup>> {
        let conn = &self.session.as_ref().expect("a transaction was begun on it").conn;
        let now = self.shared.clock.now();
        let tx = WriteTx::begin(conn, &self.shared.statements, &mut self.queue_ids, now)?;
        run_until_failure(tx, &mut self.pending, replies)
    }

    fn commit(&mut self) -> StoreResult<()> {
        let conn = &self.session.as_ref().expect("a transaction was begun on it").conn;
        execute(conn, "COMMIT").map_err(|error| {
            // After a failed sync the page cache may differ from the disk, so this connection must
            // not be used again.
            self.session = None;
            StoreError::from(error).into_commit_error()
        })
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

    /// Begins a transaction, and opens the file first if necessary.
    fn begin(&mut self) -> StoreResult<()> {
        self.reopen()?;
        let conn = &self.session.as_ref().expect("it was just opened").conn;
        execute(conn, "BEGIN IMMEDIATE")?;
        self.detect_other_writers();
        Ok(())
    }

    /// Opens the file again after a failed commit.
    fn reopen(&mut self) -> StoreResult<()> {
        if self.session.is_none() {
            self.session = Some(Session::open(&self.shared)?);
            // A new connection does not report commits from before it was opened.
            self.listeners_outdated = true;
        }
        Ok(())
    }

    /// Records whether another connection has committed since the last call.
    fn detect_other_writers(&mut self) {
        let Some(session) = &mut self.session else {
            return;
        };
        // After an error the next poll detects the commit.
        if session.other_writers.have_committed(&session.conn).unwrap_or(false) {
            self.others_last_seen = Some(Instant::now());
            self.listeners_outdated = true;
        }
    }

    /// Notifies listeners if another connection has committed since they were last notified.
    fn notify_of_other_writers(&mut self) {
        let Some(session) = self.session.as_ref().filter(|_| self.listeners_outdated) else {
            return;
        };
        match notify_all(&self.shared.listeners, &session.conn, &self.shared.statements) {
            Ok(()) => self.listeners_outdated = false,
            Err(error) => {
                tracing::debug!(%error, "listeners could not be notified of another connection's commit");
            }
        }
    }

    /// Leaves the write lock free for a moment if other connections write too and more tasks are
    /// waiting here.
    fn yield_to_other_writers(&mut self) {
        let others_active =
            self.others_last_seen.is_some_and(|seen| seen.elapsed() < OTHERS_ACTIVE_FOR);
        if !others_active {
            return;
        }
        if let Ok(message) = self.messages.try_recv() {
            self.accept(message);
            std::thread::sleep(YIELD_PAUSE);
            self.gather();
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
/// transaction runs alone, since it is the most likely one not to fit on the disk.
fn run_until_failure(
    mut tx: WriteTx<'_>,
    pending: &mut VecDeque<QueuedTask>,
    replies: &mut Vec<SendReply>,
) -> StoreResult<Vec<QueueWakeup>> {
    while let Some(task) = pending.pop_front() {
        let alone = fills_a_transaction(task.weight);
        if alone && !replies.is_empty() {
            pending.push_front(task);
            break;
        }
        let (reply, error) = task.task.run(&mut tx);
        replies.push(reply);
        if let Some(error) = error {
            // The failed call replies with its own error; this one is for the others.
            return Err(error.for_other_calls());
        }
        if alone {
            break;
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
