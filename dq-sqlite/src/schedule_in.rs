//! Scheduling inside the application's own transaction (transactional outbox).

use std::path::Path;

use dq_core::backend::escape_payload;
use dq_core::{ErrorKind, Limits, NewJob, Result, Scheduled};
use rusqlite::Transaction;

use crate::backend::SqliteBackend;
use crate::error::{StoreError, StoreResult};
use crate::schedule;
use crate::shared::StoreShared;
use crate::write_tx::{QueueIds, WriteTx};

const OPERATION: &str = "schedule_in";

impl SqliteBackend {
    /// Schedules jobs inside your own transaction.
    ///
    /// Open the transaction in this backend's file. The jobs exist if and only if it commits.
    /// Listeners are notified within 25 ms.
    ///
    /// Conflicts are resolved as in [`schedule`](dq_core::Backend::schedule). On an error no job is
    /// stored and your transaction stays open, unless the disk is full: then SQLite rolls it back.
    ///
    /// Begin the transaction with `TransactionBehavior::Immediate` and set a `busy_timeout` on the
    /// connection. A transaction that reads before it writes fails if another connection writes in
    /// between.
    ///
    /// ```no_run
    /// # async fn example(backend: dq_sqlite::SqliteBackend, job: dq_core::NewJob)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use dq_sqlite::rusqlite::{Connection, TransactionBehavior};
    ///
    /// let mut conn = Connection::open("app.db")?;
    /// let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// tx.execute("INSERT INTO orders (id) VALUES (?1)", [1001])?;
    /// let scheduled = backend.schedule_in(&tx, vec![job])?;
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for a job over the default [`Limits`], a reserved queue name or a transaction
    /// in another file; `schedule` errors.
    pub fn schedule_in(
        &self,
        transaction: &Transaction<'_>,
        mut jobs: Vec<NewJob>,
    ) -> Result<Vec<Scheduled>> {
        self.writer.ensure_open(OPERATION)?;
        let now = self.shared.clock.now();
        for job in &jobs {
            let checked = job.queue.refuse_reserved().and(Limits::default().check(job, now));
            checked.map_err(|error| error.operation(OPERATION))?;
        }
        jobs.iter_mut().for_each(escape_payload);
        let schedule = || {
            self.ensure_same_file(transaction)?;
            transaction.execute_batch("SAVEPOINT dq")?;
            let scheduled = self.schedule_all(transaction, &jobs);
            let end = if scheduled.is_ok() { "RELEASE dq" } else { "ROLLBACK TO dq; RELEASE dq" };
            // After some errors SQLite has rolled back everything, so this fails, too; the first
            // error is the informative one.
            let ended = transaction.execute_batch(end);
            let scheduled = scheduled?;
            ended?;
            Ok(scheduled)
        };
        schedule()
            .map_err(|error: StoreError| error.into_error(OPERATION, &self.shared.config.path))
    }

    /// Returns [`SCHEDULE_SQL`] with this backend's table prefix.
    #[must_use]
    pub fn schedule_sql(&self) -> String {
        self.with_prefix(SCHEDULE_SQL)
    }

    fn schedule_all(
        &self,
        transaction: &Transaction<'_>,
        jobs: &[NewJob],
    ) -> StoreResult<Vec<Scheduled>> {
        let mut queue_ids = QueueIds::default();
        let mut tx = WriteTx::begin(transaction, &self.shared, &mut queue_ids)?;
        tx.check_writer()?;
        let scheduled =
            jobs.iter().map(|job| schedule::schedule(&mut tx, job)).collect::<StoreResult<_>>()?;
        // The writer notifies listeners when it detects the commit.
        tx.finish()?;
        Ok(scheduled)
    }

    /// This backend would never run jobs from another file.
    fn ensure_same_file(&self, transaction: &Transaction<'_>) -> StoreResult<()> {
        let StoreShared { config, statements, file, .. } = &*self.shared;
        if file.is_store_of(transaction, statements)? {
            file.verify()?;
            // A copy has the same store id.
            let path = transaction.path().and_then(|path| Path::new(path).canonicalize().ok());
            if path.as_ref() == Some(&config.path) {
                return Ok(());
            }
        }
        Err(StoreError::new(
            ErrorKind::InvalidInput,
            "the transaction is open in another file",
            "open the transaction in the backend's file, on a connection that was opened after the \
             file was last replaced; a table in an attached file does not count",
        ))
    }
}

/// SQL statement that schedules a job from other drivers and languages (default table prefix).
///
/// Its meaning never changes, even if the tables do; a newer version would be another view. The
/// parameters are:
///
/// 1. `queue`: text, 1 to 128 bytes of UTF-8 without control characters;
/// 2. `id`: a unique 16-byte blob; preferably a version 7 UUID, whose time order keeps the file
///    compact;
/// 3. `key`: null, or text, 1 to 255 bytes of UTF-8 without control characters;
/// 4. `due`: an integer, Unix time in milliseconds;
/// 5. `payload`: a blob or text; JSON unless a `content-type` header names another type;
/// 6. `headers`: null, or a JSON object as text, with string values;
/// 7. `max_attempts`: null for the queue's own limit, or an integer from 1.
///
/// Parameters that break these rules fail with a message that begins with `dq:`. Not everything is
/// checked. SQL accepts names that begin with `dq.`; do not use them. It refuses names with U+FFFE
/// or U+FFFF, which Rust accepts. It accepts headers that are JSON but not UTF-8; such a job is
/// quarantined when due. The SQLite that runs the statement needs the JSON functions, built in from
/// 3.38 on; up to 3.40 it refuses them to connections with `PRAGMA trusted_schema = OFF`.
///
/// The statement changes nothing if the id exists, is pinned or is in the queue's history, or if
/// the key is live. To see the existing job, select `id` from the view by `queue` and `key`.
/// Listeners are notified within 25 ms of the commit.
pub const SCHEDULE_SQL: &str = "INSERT INTO dq_schedule_v1 \
    (queue, id, key, due, payload, headers, max_attempts) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
