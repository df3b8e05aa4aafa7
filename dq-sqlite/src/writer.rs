//! The writer thread: group commit.
//!
//! While one transaction syncs to disk, tasks gather in the channel; the next transaction takes all
//! of them. There is no timer: a single caller pays one sync per call, concurrent callers share
//! one.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dq_core::Listeners;
use dq_core::config::Environment;
use dq_core::sync::lock;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use crate::config::SqliteConfig;
use crate::connection::{self, OpenMode, data_version};
use crate::error::{StoreError, StoreResult};
use crate::maintenance;
use crate::reader::ReadTx;
use crate::shared::StoreShared;
use crate::statements::Statements;
use crate::store_file::StoreFile;
use crate::task::{Access, SendReply, TaskQueue, Weight, WriterMessage};
use crate::write_tx::{Changes, QueueIds, WriteTx};

/// With this many items a transaction is full. Less than a chunk (`CHUNK_ITEMS` in `backend.rs`),
/// so each chunk runs alone.
const GROUP_ITEMS: usize = 512;

const GROUP_BYTES: usize = 4 * 1024 * 1024;

/// How often an idle writer polls for foreign commits. A poll reads a number in shared memory and
/// takes a microsecond.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// The same while other connections write: they hand over jobs and places in full queues.
const ACTIVE_POLL_INTERVAL: Duration = Duration::from_millis(3);

/// How often the writer tries to take a foreign write lock. SQLite's own handler sleeps up to 100
/// ms and misses a lock that is free for only some milliseconds. A try takes some microseconds.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Pause between transactions while other connections write. SQLite's waiters sleep and retry;
/// without a pause they never find the lock free.
const YIELD_PAUSE: Duration = Duration::from_millis(1);

const OTHERS_ACTIVE_FOR: Duration = Duration::from_secs(10);

const MAINTENANCE_DELAY: Duration = Duration::from_millis(200);

pub(crate) struct Session {
    conn: Connection,
    /// As last seen: another connection's commit changes it.
    data_version: i64,
}

impl Session {
    fn reopen(shared: &StoreShared) -> StoreResult<Self> {
        shared.file.verify()?;
        let session = Self::connect(&shared.config, OpenMode::Again)?;
        shared.file.verify_opened(&session.conn, &shared.statements)?;
        Ok(session)
    }

    fn connect(config: &SqliteConfig, mode: OpenMode) -> StoreResult<Self> {
        let conn = connection::open_writer(config, mode)?;
        let data_version = data_version(&conn)?;
        // From now on the writer waits for the lock itself and accepts tasks meanwhile.
        conn.busy_timeout(Duration::ZERO)?;
        Ok(Self { conn, data_version })
    }

    fn others_have_committed(&mut self) -> StoreResult<bool> {
        let version = data_version(&self.conn)?;
        Ok(std::mem::replace(&mut self.data_version, version) != version)
    }
}

pub(crate) fn open_store(
    mut config: SqliteConfig,
    mode: OpenMode,
    environment: Environment,
) -> StoreResult<(Session, Arc<StoreShared>)> {
    config.path = connection::absolute_path(&config.path)?;
    let statements = Statements::new(&config.table_prefix);
    let session = Session::connect(&config, mode)?;
    let file = StoreFile::of(&session.conn, &statements, &config.path)?;
    let Environment { clock, history, .. } = environment;
    let listeners = Listeners::default();
    let (directory, due_index) = (Mutex::default(), Mutex::default());
    let shared =
        StoreShared { config, statements, clock, history, listeners, directory, due_index, file };
    Ok((session, Arc::new(shared)))
}

pub(crate) struct Writer {
    shared: Arc<StoreShared>,
    messages: Receiver<WriterMessage>,
    /// `None` after a failed commit or rollback.
    session: Option<Session>,
    queue_ids: QueueIds,
    pending: TaskQueue,
    closing: Option<oneshot::Sender<()>>,
    others_last_seen: Option<Instant>,
    /// Kept until listeners hear of the foreign commit: SQLite reports a commit once, and the
    /// transaction that saw it may fail.
    listeners_outdated: bool,
    last_write: Instant,
    needs_maintenance: bool,
}

impl Writer {
    pub(crate) fn new(
        shared: Arc<StoreShared>,
        session: Session,
        messages: Receiver<WriterMessage>,
    ) -> Self {
        Self {
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
        }
    }

    pub(crate) fn run(mut self) {
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

    /// Waits for a message, and polls meanwhile if there are listeners or maintenance work. Returns
    /// `false` when all senders are dropped.
    fn wait(&mut self) -> bool {
        loop {
            let message = if self.needs_maintenance || !self.shared.listeners.is_empty() {
                let is_active = self.others_are_active();
                let interval = if is_active { ACTIVE_POLL_INTERVAL } else { POLL_INTERVAL };
                self.messages.recv_timeout(interval)
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

    fn gather(&mut self) {
        while self.closing.is_none()
            && let Ok(message) = self.messages.try_recv()
        {
            self.accept(message);
        }
    }

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

    /// Runs pending tasks in a transaction. `replies` gets the reply of each task that ran; on an
    /// error these tasks fail. If the transaction cannot begin, all pending tasks are rejected.
    fn try_transaction(&mut self, replies: &mut Vec<SendReply>) -> StoreResult<Changes> {
        let result = self.begin().and_then(|()| self.run_pending(replies));
        match result {
            Ok(changes) => self.commit(&changes).map(|()| changes),
            Err(error) => {
                self.roll_back();
                if replies.is_empty() {
                    while let Some(task) = self.pending.pop() {
                        task.reject(error.clone());
                    }
                }
                Err(error)
            }
        }
    }

    fn run_pending(&mut self, replies: &mut Vec<SendReply>) -> StoreResult<Changes> {
        let conn = &self.session.as_ref().expect("`begin` has opened it").conn;
        let tx = WriteTx::begin(conn, &self.shared, &mut self.queue_ids)?;
        run_until_failure(tx, &mut self.pending, replies)
    }

    /// Commits. Fails if the path leads to another file by now: no write is acknowledged in a file
    /// that is gone.
    fn commit(&mut self, changes: &Changes) -> StoreResult<()> {
        let shared = Arc::clone(&self.shared);
        // Locked during the commit, so that no claim reads the new file version before the changes.
        let mut due_index = lock(&shared.due_index);
        if let Err(error) = execute(self.conn(), "COMMIT") {
            due_index.invalidate();
            // After a failed sync the page cache may differ from the disk: never use this
            // connection again.
            self.session = None;
            return Err(StoreError::from(error).into_commit_error());
        }
        due_index.committed(&changes.next_due, || self.others_have_committed());
        drop(due_index);
        self.shared.file.verify().map_err(StoreError::after_commit)
    }

    fn conn(&self) -> &Connection {
        &self.session.as_ref().expect("`begin` has opened it").conn
    }

    fn roll_back(&mut self) {
        let Some(Session { conn, .. }) = &self.session else {
            return;
        };
        // No transaction is open if BEGIN failed or SQLite rolled back by itself.
        if !conn.is_autocommit() && conn.execute_batch("ROLLBACK").is_err() {
            self.session = None;
        }
    }

    fn begin(&mut self) -> StoreResult<()> {
        self.reopen()?;
        self.take_lock()?;
        // Only now, because taking the lock may take a while.
        self.shared.file.verify()?;
        self.detect_other_writers();
        Ok(())
    }

    /// Takes the write lock. Meanwhile tasks are accepted, so that the transaction includes them.
    ///
    /// Rejects each task that has waited `busy_timeout`; fails if none is left.
    fn take_lock(&mut self) -> StoreResult<()> {
        let since = Instant::now();
        loop {
            let error = match execute(self.conn(), "BEGIN IMMEDIATE") {
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

    fn reject_timed_out(&mut self, since: Instant, busy: StoreError) -> StoreResult<()> {
        let timeout = self.shared.config.busy_timeout;
        while let Some(task) = self.pending.pop_waiting_for(timeout, since) {
            task.reject(busy.clone());
        }
        if self.pending.is_empty() { Err(busy) } else { Ok(()) }
    }

    fn reopen(&mut self) -> StoreResult<()> {
        if self.session.is_none() {
            self.session = Some(Session::reopen(&self.shared)?);
            // A new connection does not report earlier commits.
            self.listeners_outdated = true;
            lock(&self.shared.due_index).invalidate();
        }
        Ok(())
    }

    fn detect_other_writers(&mut self) {
        if self.others_have_committed() {
            lock(&self.shared.due_index).invalidate();
        }
    }

    /// Returns whether other connections have committed since the last call; true if unknown.
    fn others_have_committed(&mut self) -> bool {
        let Some(session) = &mut self.session else {
            return true;
        };
        // After an error the next poll detects the commit.
        let committed = session.others_have_committed();
        if let Ok(true) = committed {
            self.others_last_seen = Some(Instant::now());
            self.listeners_outdated = true;
        }
        committed.unwrap_or(true)
    }

    fn others_are_active(&self) -> bool {
        self.others_last_seen.is_some_and(|seen| seen.elapsed() < OTHERS_ACTIVE_FOR)
    }

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

    /// Leaves the write lock free for a moment if others write, too.
    fn yield_to_other_writers(&mut self) {
        let pause = YIELD_PAUSE.saturating_sub(self.last_write.elapsed());
        if self.others_are_active() && !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }

    fn poll(&mut self) {
        if self.reopen().is_err() {
            // The next call reports the error. Until then only listeners justify a retry.
            self.needs_maintenance = false;
            return;
        }
        self.detect_other_writers();
        self.notify_of_other_writers();
        if self.needs_maintenance
            && self.last_write.elapsed() >= MAINTENANCE_DELAY
            && let Some(session) = &self.session
        {
            // After an error (busy, disk full) the next write sets the flag again.
            self.needs_maintenance = maintenance::vacuum_step(&session.conn).unwrap_or(false);
        }
    }

    fn close(mut self) {
        if let Some(Session { conn, .. }) = self.session.take() {
            // Fails while other connections are active; they checkpoint the log later.
            let _ = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            drop(conn);
        }
        if let Some(done) = self.closing.take() {
            let _ = done.send(());
        }
    }
}

/// Sends each listener its queue's first due time: any queue may have changed.
fn notify_all(shared: &StoreShared, conn: &Connection) -> StoreResult<()> {
    let names = shared.listeners.queues();
    let queues = shared.find_queues(conn, names.iter())?;
    let mut waiting = Vec::new();
    queues.for_each_waiting(conn, &shared.statements, |position, queue_id, due| {
        waiting.push((position, queue_id, due));
    })?;
    let reading = ReadTx::new(conn, shared);
    for (position, queue_id, due) in waiting {
        if let Some(due) = reading.opens_at(queue_id, due)? {
            shared.listeners.wake(&names[position], due);
        }
    }
    Ok(())
}

/// Runs pending tasks until the first failure: a full disk makes SQLite roll back the whole
/// transaction, so the rest run in the next one. A task that fills a transaction runs alone,
/// because it is the most likely to exceed the disk. Tasks that this library version may no longer
/// run are rejected.
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
            task.reject(error);
            continue;
        }
        if fills_a_transaction(task.weight) && !replies.is_empty() {
            pending.put_back(task);
            break;
        }
        sum.add(task.weight);
        let (reply, error) = task.run(&mut tx);
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

#[cfg(all(test, unix))]
mod tests {
    use std::fs;

    use dq_core::{Backend, Due, ErrorKind, Scheduled};

    use super::*;
    use crate::fixture::Fixture;

    // Windows refuses to move an open file.
    #[tokio::test]
    async fn a_commit_to_a_file_that_was_moved_meanwhile_is_not_acknowledged() {
        let fixture = Fixture::new().await;
        let job = fixture.job(0, Due::NOW);
        let [path, elsewhere] =
            ["jobs.db", "elsewhere.db"].map(|name| fixture.dir.path().join(name));
        let (from, to, stored) = (path.clone(), elsewhere.clone(), job.clone());
        let move_and_write = move |tx: &mut WriteTx<'_>| {
            fs::rename(from, to).unwrap();
            crate::schedule::schedule(tx, &stored)
        };
        let writer = &fixture.backend.writer;
        let call = writer.submit("test", Access::Write, Weight::ONE, move_and_write);
        let error = call.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        assert!(error.message().contains("deleted or moved"), "{error}");

        fs::rename(elsewhere, path).unwrap();
        let repeated = fixture.backend.schedule(vec![job]).await.unwrap();
        assert!(matches!(repeated[..], [Scheduled::Created(_)]), "{repeated:?}");
        let stats = fixture.backend.stats(&[]).await.unwrap();
        assert_eq!(stats[0].ready, 1, "the file had the job");
    }
}
