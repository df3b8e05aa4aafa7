//! Converts rows to jobs, and invalid rows to errors.

use std::fmt;

use bytes::Bytes;
use dq_core::{
    DeadKind, DeadReason, Ended, Ending, Headers, Job, JobId, JobKey, JobState, JobView, QueueName,
    Timestamp,
};
use rusqlite::types::ValueRef;
use rusqlite::{Result, Row};

/// `columns!` in `statements.rs` lists them in this order: 0 `id`, 1 `key`, 2 `due`, 3 `first_due`,
/// 4 `created`, 5 `attempts`, 6 `deliveries`, 7 `losses`, 8 `max_attempts`, 9 `headers`, 10
/// `payload`. Statements may append `seq` and the ordering time, and views also `last_error`.
const JOB_COLUMNS: usize = 11;

/// Live jobs add the lease end, `worker` and `since`, null without a lease; dead jobs `kind` and
/// `message`; ended jobs `ending`, `reason`, `worker` and `started`.
const LAST_ERROR: usize = JOB_COLUMNS + 2;

/// A listing's ordering time, and `seq`.
pub(crate) type Position = (i64, i64);

pub(crate) fn position(row: &Row<'_>) -> Result<Position> {
    Ok((row.get(JOB_COLUMNS + 1)?, row.get(JOB_COLUMNS)?))
}

pub(crate) fn is_orphan(row: &Row<'_>) -> Result<bool> {
    Ok(row.get_ref(0)? == ValueRef::Null)
}

/// Reads a queue's name, or returns why it is invalid: SQLite stores any bytes as text.
pub(crate) fn queue_name(stored: ValueRef<'_>) -> std::result::Result<QueueName, String> {
    let name = stored.as_str().map_err(|error| format!("the queue name is not UTF-8: {error}"))?;
    QueueName::new(name).map_err(|error| error.message().to_owned())
}

/// Reads a job. Also returns why the row is invalid, if it is: other programs may write anything.
/// Columns that cannot be read then have default values.
pub(crate) fn job(row: &Row<'_>, queue: &QueueName) -> (Job, Option<String>) {
    let mut invalid = None;
    let payload = row.get_ref(10).and_then(|payload| Ok(payload.as_bytes()?));
    let payload = value_or_default(payload, &mut invalid);
    let mut job = Job::new(
        JobId::from_bytes(value_or_default(row.get(0), &mut invalid)),
        queue.clone(),
        Timestamp::from_millis(value_or_default(row.get(2), &mut invalid)),
        Timestamp::from_millis(value_or_default(row.get(4), &mut invalid)),
        Bytes::copy_from_slice(payload),
    );
    let key: Option<String> = value_or_default(row.get(1), &mut invalid);
    job.key = value_or_default(key.map(JobKey::new).transpose(), &mut invalid);
    let first_due = row.get(3).map(Some);
    job.first_due =
        value_or_default(first_due, &mut invalid).map_or(job.due, Timestamp::from_millis);
    job.attempts = value_or_default(row.get(5), &mut invalid);
    job.deliveries = value_or_default(row.get(6), &mut invalid);
    job.losses = value_or_default(row.get(7), &mut invalid);
    job.max_attempts = value_or_default(row.get(8), &mut invalid);
    if let Some(json) = value_or_default(row.get::<_, Option<String>>(9), &mut invalid) {
        let headers = serde_json::from_str(&json)
            .map_err(|error| format!("the headers are not a JSON object of strings: {error}"));
        job.headers = value_or_default(headers, &mut invalid);
    }
    (job, invalid)
}

/// Keeps the first error in `invalid`.
fn value_or_default<T: Default>(
    value: std::result::Result<T, impl fmt::Display>,
    invalid: &mut Option<String>,
) -> T {
    value.unwrap_or_else(|error| {
        invalid.get_or_insert_with(|| error.to_string());
        T::default()
    })
}

/// NULL if there are none.
/// The group of a job whose headers another program has damaged is unknown.
#[derive(Debug, Clone)]
pub(crate) struct UnknownGroup;

pub(crate) fn group(headers: ValueRef<'_>) -> std::result::Result<Option<String>, UnknownGroup> {
    if headers == ValueRef::Null {
        return Ok(None);
    }
    let headers = headers.as_bytes().map_err(|_| UnknownGroup)?;
    let headers: Headers = serde_json::from_slice(headers).map_err(|_| UnknownGroup)?;
    Ok(headers.get(Headers::GROUP).map(str::to_owned))
}

pub(crate) fn encode_headers(headers: &Headers) -> Option<String> {
    let encode =
        || serde_json::to_string(headers).expect("a map of strings to strings is always JSON");
    (!headers.is_empty()).then(encode)
}

fn view(row: &Row<'_>, job: Job, state: JobState) -> JobView {
    let mut view = JobView::new(job, state);
    view.last_error = row.get(LAST_ERROR).unwrap_or_default();
    view
}

/// Reads a waiting or running job. A job with an expired lease waits again, as if a write had ended
/// the lease.
pub(crate) fn live(row: &Row<'_>, queue: &QueueName, now: Timestamp) -> Result<JobView> {
    let mut job = job(row, queue).0;
    let until = row.get::<_, Option<i64>>(LAST_ERROR + 1)?.map(Timestamp::from_millis);
    let is_running = until.is_some_and(|until| until > now);
    if until.is_some() {
        // A lease's delivery is added to the row only when the lease ends.
        job.deliveries = job.deliveries.saturating_add(1);
        job.losses = job.losses.saturating_add(u32::from(!is_running));
    }
    let state = if is_running {
        JobState::Running
    } else if job.due > now {
        JobState::Scheduled
    } else {
        JobState::Ready
    };
    let mut view = view(row, job, state);
    if is_running {
        view.leased_until = until;
        view.worker = row.get(LAST_ERROR + 2)?;
        view.leased_since = row.get(LAST_ERROR + 3).map(Timestamp::from_millis).map(Some)?;
    }
    Ok(view)
}

pub(crate) fn dead(row: &Row<'_>, queue: &QueueName) -> Result<JobView> {
    let job = job(row, queue).0;
    let kind = DeadKind::from_name(row.get_ref(LAST_ERROR + 1)?.as_str()?);
    let reason = DeadReason { kind, message: row.get(LAST_ERROR + 2)? };
    let died = Timestamp::from_millis(row.get(JOB_COLUMNS + 1)?);
    let mut view = view(row, job, JobState::Dead);
    view.dead = Some((reason, died));
    Ok(view)
}

pub(crate) fn ended(row: &Row<'_>, queue: &QueueName) -> Result<JobView> {
    let mut view = view(row, job(row, queue).0, JobState::Ended);
    // A later library version may know other endings.
    let ending = Ending::from_name(row.get_ref(LAST_ERROR + 1)?.as_str()?);
    let at = row.get(JOB_COLUMNS + 1).map(Timestamp::from_millis)?;
    let mut ended = Ended::new(ending.unwrap_or(Ending::Removed), at);
    ended.reason = row.get(LAST_ERROR + 2)?;
    view.ended = Some(ended);
    view.worker = row.get(LAST_ERROR + 3)?;
    view.leased_since = row.get::<_, Option<i64>>(LAST_ERROR + 4)?.map(Timestamp::from_millis);
    Ok(view)
}
