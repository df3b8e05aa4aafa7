//! SQL statements for the caller's own transaction, in any driver.

use dq_core::{Due, Error, Lease, NewJob, OnConflict, OnRunning, Result, SqlStatement};

use crate::backend::SqliteBackend;

const SCHEDULE: &str = "INSERT INTO dq_schedule_v1 \
    (queue, id, key, due, payload, headers, max_attempts) \
    SELECT value ->> 'queue', unhex(value ->> 'id', '-'), value ->> 'key', value ->> 'due', \
    unhex(value ->> 'payload'), nullif(value ->> 'headers', '{}'), value ->> 'max_attempts' \
    FROM json_each(?1)";

const DONE: &str = "INSERT INTO dq_done_v1 (id, token, history) \
    SELECT unhex(?1 ->> 'id', '-'), ?1 ->> 'token', ";

impl SqliteBackend {
    pub(crate) fn job_statement(&self, mut jobs: Vec<NewJob>) -> Result<SqlStatement> {
        let now = self.shared.clock.now();
        for job in &mut jobs {
            check_policies(job)?;
            job.due = Due::At(job.due.resolve(now));
        }
        Ok(SqlStatement::of_jobs(self.with_prefix(SCHEDULE), &jobs))
    }

    pub(crate) fn lease_statement(&self, lease: &Lease) -> SqlStatement {
        let limit = self.shared.history.get(&lease.queue);
        let history = i32::from(limit.is_some_and(|limit| limit.max > 0));
        SqlStatement::of_lease(format!("{}{history}", self.with_prefix(DONE)), lease)
    }

    pub(crate) fn with_prefix(&self, sql: &str) -> String {
        sql.replacen("dq_", &self.shared.config.table_prefix, 1)
    }
}

/// The view has no columns for these.
fn check_policies(job: &NewJob) -> Result<()> {
    let feature = if job.on_conflict != OnConflict::Keep {
        "`on_conflict` in a statement"
    } else if job.on_running != OnRunning::Refuse {
        "`on_running` in a statement"
    } else if !job.remember.is_zero() {
        "`remember` in a statement"
    } else {
        return Ok(());
    };
    Err(Error::unsupported("sqlite", feature)
        .remedy("use `SqliteBackend::schedule_in`, or cancel the earlier job first")
        .operation("schedule"))
}
