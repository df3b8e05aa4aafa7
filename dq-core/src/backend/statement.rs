//! SQL statements for the caller's own transaction.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use super::claim::Lease;
use crate::model::{Due, NewJob, OnConflict, OnRunning, Timestamp};

/// An SQL statement for your own transaction, with one text parameter.
///
/// Made by [`Schedule::statement`](crate::Schedule::statement) and
/// [`JobContext::done_statement`](crate::JobContext::done_statement). Any driver can execute it:
/// bind [`argument`](Self::argument) as the only parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "nothing happens until your driver executes the statement"]
pub struct SqlStatement {
    sql: String,
    argument: String,
}

impl SqlStatement {
    /// Creates a statement about jobs. Its argument is a JSON array with an object per job:
    ///
    /// - `id`: a UUID;
    /// - `queue`, `key`: text; `key` may be null;
    /// - `due`: Unix milliseconds, or a delay in milliseconds if `is_delay`;
    /// - `on_conflict`, `on_running`: the policies in snake case;
    /// - `remember`: milliseconds;
    /// - `max_attempts`: a number or null;
    /// - `headers`: a JSON object as text;
    /// - `payload`: hexadecimal.
    pub fn of_jobs(sql: impl Into<String>, jobs: &[NewJob]) -> Self {
        let jobs: Vec<EncodedJob<'_>> = jobs.iter().map(EncodedJob::new).collect();
        Self { sql: sql.into(), argument: encode(&jobs) }
    }

    /// Creates a statement about a lease. Its argument is a JSON object with `id` and `token`.
    pub fn of_lease(sql: impl Into<String>, lease: &Lease) -> Self {
        let lease = EncodedLease { id: lease.job.to_string(), token: lease.token.0 };
        Self { sql: sql.into(), argument: encode(&lease) }
    }

    /// Returns the SQL.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// Returns the statement's only parameter.
    pub fn argument(&self) -> &str {
        &self.argument
    }
}

#[derive(Serialize)]
struct EncodedJob<'a> {
    id: String,
    queue: &'a str,
    key: Option<&'a str>,
    due: i64,
    is_delay: bool,
    on_conflict: OnConflict,
    on_running: OnRunning,
    remember: i64,
    max_attempts: Option<u32>,
    headers: String,
    payload: String,
}

#[derive(Serialize)]
struct EncodedLease {
    id: String,
    token: u64,
}

impl<'a> EncodedJob<'a> {
    fn new(job: &'a NewJob) -> Self {
        Self {
            id: job.id.to_string(),
            queue: job.queue.as_str(),
            key: job.key.as_ref().map(|key| key.as_str()),
            due: match job.due {
                Due::At(at) => at.as_millis(),
                Due::After(delay) => millis(delay),
            },
            is_delay: matches!(job.due, Due::After(_)),
            on_conflict: job.on_conflict,
            on_running: job.on_running,
            remember: millis(job.remember),
            max_attempts: job.max_attempts,
            headers: encode(&job.headers),
            payload: hexadecimal(&job.payload),
        }
    }
}

/// Far below `i64::MAX`, because the store adds its time.
fn millis(duration: Duration) -> i64 {
    (Timestamp::EPOCH + duration).as_millis().min(i64::MAX / 4)
}

fn encode(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("text, numbers and maps of text are always JSON")
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        write!(text, "{byte:02x}").expect("writing to a string never fails");
    }
    text
}
