//! Conversion of rows to jobs, and of invalid rows to errors.

use bytes::Bytes;
use dq_core::{
    DeadKind, DeadReason, Headers, Job, JobId, JobKey, JobState, JobView, QueueName, Timestamp,
};
use rusqlite::types::ValueRef;
use rusqlite::{Result, Row};

/// Number of columns of a job, which `columns!` in `statements.rs` lists in this order: 0 `id`, 1
/// `key`, 2 `due`, 3 `created`, 4 `attempts`, 5 `deliveries`, 6 `losses`, 7 `max_attempts`, 8
/// `headers`, 9 `payload`. A statement may append `seq` and the time by which it is ordered, and
/// for dead jobs `kind` and `message`.
const JOB_COLUMNS: usize = 10;

/// The columns `seq` and the time by which a statement is ordered.
pub(crate) fn position(row: &Row<'_>) -> Result<(i64, i64)> {
    Ok((row.get(JOB_COLUMNS)?, row.get(JOB_COLUMNS + 1)?))
}

/// The name of a queue, or the reason why it is invalid: SQLite stores any bytes as text.
pub(crate) fn queue_name(stored: ValueRef<'_>) -> std::result::Result<QueueName, String> {
    let name = stored.as_str().map_err(|error| format!("the queue name is not UTF-8: {error}"))?;
    QueueName::new(name).map_err(|error| error.message().to_owned())
}

/// The job of a row, or the reason why the row is invalid: rows that other programs wrote may hold
/// anything.
pub(crate) fn job(row: &Row<'_>, queue: &QueueName) -> std::result::Result<Job, String> {
    let reason = |error: rusqlite::Error| error.to_string();
    let key = row.get::<_, Option<String>>(1).map_err(reason)?;
    let key = key.map(JobKey::new).transpose().map_err(|error| error.to_string())?;
    let headers = match row.get::<_, Option<String>>(8).map_err(reason)? {
        None => Headers::new(),
        Some(json) => serde_json::from_str(&json)
            .map_err(|error| format!("the headers are not a JSON object of strings: {error}"))?,
    };
    Ok(Job {
        id: JobId::from_bytes(row.get(0).map_err(reason)?),
        queue: queue.clone(),
        key,
        due: row.get(2).map(Timestamp::from_millis).map_err(reason)?,
        created: row.get(3).map(Timestamp::from_millis).map_err(reason)?,
        attempts: row.get(4).map_err(reason)?,
        deliveries: row.get(5).map_err(reason)?,
        losses: row.get(6).map_err(reason)?,
        max_attempts: row.get(7).map_err(reason)?,
        headers,
        payload: payload(row).map_err(reason)?,
    })
}

fn payload(row: &Row<'_>) -> Result<Bytes> {
    Ok(Bytes::copy_from_slice(row.get_ref(9)?.as_bytes()?))
}

/// The job of a row for display: columns that cannot be read get default values.
fn job_or_defaults(row: &Row<'_>, queue: &QueueName) -> Job {
    job(row, queue).unwrap_or_else(|_| Job {
        id: JobId::from_bytes(row.get(0).unwrap_or_default()),
        queue: queue.clone(),
        key: None,
        due: Timestamp::from_millis(row.get(2).unwrap_or_default()),
        created: Timestamp::from_millis(row.get(3).unwrap_or_default()),
        attempts: row.get(4).unwrap_or_default(),
        deliveries: row.get(5).unwrap_or_default(),
        losses: row.get(6).unwrap_or_default(),
        max_attempts: row.get(7).unwrap_or_default(),
        headers: Headers::new(),
        payload: payload(row).unwrap_or_default(),
    })
}

/// Headers as they are stored: NULL if there are none.
pub(crate) fn encode_headers(headers: &Headers) -> Option<String> {
    let encode =
        || serde_json::to_string(headers).expect("a map of strings to strings is always JSON");
    (!headers.is_empty()).then(encode)
}

/// The view of a waiting job.
pub(crate) fn waiting(row: &Row<'_>, queue: &QueueName, now: Timestamp) -> JobView {
    let job = job_or_defaults(row, queue);
    let state = if job.due > now { JobState::Scheduled } else { JobState::Ready };
    JobView { job, state, leased_until: None, dead: None }
}

/// The view of a job that is leased until `until`.
pub(crate) fn running(row: &Row<'_>, queue: &QueueName, until: i64) -> JobView {
    let mut job = job_or_defaults(row, queue);
    // The delivery of the current lease is added to the row only when the lease ends.
    job.deliveries = job.deliveries.saturating_add(1);
    let leased_until = Some(Timestamp::from_millis(until));
    JobView { job, state: JobState::Running, leased_until, dead: None }
}

/// The view of a dead job.
pub(crate) fn dead(row: &Row<'_>, queue: &QueueName) -> Result<JobView> {
    let job = job_or_defaults(row, queue);
    let kind = DeadKind::from_name(row.get_ref(JOB_COLUMNS + 2)?.as_str()?);
    let reason = DeadReason { kind, message: row.get(JOB_COLUMNS + 3)? };
    let died = Timestamp::from_millis(row.get(JOB_COLUMNS + 1)?);
    Ok(JobView { job, state: JobState::Dead, leased_until: None, dead: Some((reason, died)) })
}
