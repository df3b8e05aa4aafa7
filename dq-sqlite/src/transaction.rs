//! Scheduling inside a transaction of the caller's own: the job exists if and only if the caller's
//! other writes do.

use dq_core::{ErrorKind, Limits, NewJob, Result, Scheduled};
use rusqlite::Transaction;

use crate::backend::SqliteBackend;
use crate::error::{Failure, Outcome};
use crate::schedule;
use crate::tx::{Names, Tx};

const OPERATION: &str = "schedule_in";

impl SqliteBackend {
    /// Stores jobs inside `transaction`, which must be open in this backend's file: they come to be
    /// when it commits, and never if it rolls back. Listeners notice the commit within 25 ms.
    ///
    /// Conflicts are settled as by [`schedule`](dq_core::Backend::schedule). When this fails, none
    /// of the jobs is stored and the transaction goes on, unless the disk is full: then SQLite rolls
    /// back the whole of it.
    ///
    /// Begin the transaction with `TransactionBehavior::Immediate` and set a `busy_timeout` on the
    /// connection; one that reads first and writes later fails when others have written meanwhile.
    ///
    /// ```no_run
    /// # async fn example(backend: dq_sqlite::SqliteBackend, job: dq_core::NewJob)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use dq_sqlite::rusqlite::{Connection, TransactionBehavior};
    ///
    /// let mut conn = Connection::open("app.db")?;
    /// let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// tx.execute("INSERT INTO orders (id) VALUES (?1)", [1001])?;
    /// let answers = backend.schedule_in(&tx, vec![job])?;
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for a job over the default [`Limits`] or a transaction in another file, and
    /// those of `schedule`.
    pub fn schedule_in(
        &self,
        transaction: &Transaction<'_>,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<Scheduled>> {
        self.submitter.ensure_open(OPERATION)?;
        let now = self.shared.clock.now();
        for job in &jobs {
            Limits::default().check(job, now).map_err(|error| error.operation(OPERATION))?;
        }
        let schedule = || {
            self.refuse_other_files(transaction)?;
            transaction.execute_batch("SAVEPOINT dq")?;
            let answers = self.schedule_all(transaction, &jobs);
            let end = if answers.is_ok() { "RELEASE dq" } else { "ROLLBACK TO dq; RELEASE dq" };
            // After some failures SQLite has rolled back everything; the first failure tells more.
            let ended = transaction.execute_batch(end);
            let answers = answers?;
            ended?;
            Ok(answers)
        };
        schedule()
            .map_err(|failure: Failure| failure.into_error(OPERATION, &self.shared.config.path))
    }

    /// The statement that schedules a job in plain SQL, for transactions of other drivers and
    /// languages: [`SCHEDULE_SQL`] with this backend's table prefix.
    #[must_use]
    pub fn schedule_sql(&self) -> String {
        SCHEDULE_SQL.replacen("dq_", &self.shared.config.table_prefix, 1)
    }

    fn schedule_all(
        &self,
        transaction: &Transaction<'_>,
        jobs: &[NewJob],
    ) -> Outcome<Vec<Scheduled>> {
        let mut names = Names::default();
        let now = self.shared.clock.now();
        let mut tx = Tx::begin(transaction, &self.shared.sql, &mut names, now)?;
        let answers =
            jobs.iter().map(|job| schedule::schedule(&mut tx, job)).collect::<Outcome<_>>()?;
        // Listeners hear of it by the commit, which is not ours to see.
        tx.finish()?;
        Ok(answers)
    }

    /// A job in another file would wait for ever.
    fn refuse_other_files(&self, transaction: &Transaction<'_>) -> Outcome<()> {
        let store: Option<[u8; 16]> = transaction
            .prepare_cached(&self.shared.sql.meta)
            .and_then(|mut meta| meta.query_row([], |row| row.get(3)))
            .ok();
        if store == Some(self.submitter.store_id()) {
            return Ok(());
        }
        Err(Failure::new(
            ErrorKind::InvalidInput,
            "the transaction is open in another file",
            "open the transaction in the backend's file; the same table in an attached file does not count",
        ))
    }
}

/// Schedules a job in plain SQL, with the default table prefix.
///
/// This is a published interface: its meaning never changes, whatever becomes of the tables
/// beneath. A newer version would be another view, beside this one. The parameters are:
///
/// 1. `queue`: text of 1 to 128 bytes of UTF-8 without control characters;
/// 2. `id`: a blob of 16 bytes that no other job has; best a UUID of version 7, whose order in
///    time keeps the file compact;
/// 3. `key`: null, or text of 1 to 255 bytes of UTF-8 without control characters;
/// 4. `due`: an integer, Unix time in milliseconds;
/// 5. `payload`: a blob or text; JSON unless a `content-type` header says otherwise;
/// 6. `headers`: null, or the text of a JSON object whose values are text;
/// 7. `max_attempts`: null for the queue's own limit, or an integer from 1.
///
/// What breaks these rules fails with a message that begins with `dq:`. SQL cannot see everything:
/// names with U+FFFE or U+FFFF, which Rust accepts, are refused, and headers that are JSON but not
/// UTF-8 are accepted, whose job is quarantined when its time comes. The SQLite that runs the
/// statement needs the JSON functions, which are built in from 3.38 on; up to 3.40 it refuses them
/// to connections with `PRAGMA trusted_schema = OFF`.
///
/// A job whose id is known or whose key is live already changes nothing; to see which, select `id`
/// from the view by `queue` and `key`. Listeners notice the commit within 25 ms.
pub const SCHEDULE_SQL: &str = "INSERT INTO dq_schedule_v1 \
    (queue, id, key, due, payload, headers, max_attempts) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
