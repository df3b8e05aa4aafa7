//! Converts rows to jobs, and invalid rows to errors.

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

/// Dead jobs add `kind` and `message`; running jobs the shown lease end, `worker` and `since`;
/// ended jobs `ending`, `reason`, `worker` and `started`.
const LAST_ERROR: usize = JOB_COLUMNS + 2;

/// `seq` and the ordering time.
pub(crate) fn position(row: &Row<'_>) -> Result<(i64, i64)> {
    Ok((row.get(JOB_COLUMNS)?, row.get(JOB_COLUMNS + 1)?))
}

pub(crate) fn is_orphan(row: &Row<'_>) -> Result<bool> {
    Ok(row.get_ref(0)? == ValueRef::Null)
}

/// Or why the name is invalid: SQLite stores any bytes as text.
pub(crate) fn queue_name(stored: ValueRef<'_>) -> std::result::Result<QueueName, String> {
    let name = stored.as_str().map_err(|error| format!("the queue name is not UTF-8: {error}"))?;
    QueueName::new(name).map_err(|error| error.message().to_owned())
}

/// Or why the row is invalid: other programs may write anything.
pub(crate) fn job(row: &Row<'_>, queue: &QueueName) -> std::result::Result<Job, String> {
    let reason = |error: rusqlite::Error| error.to_string();
    let key = row.get::<_, Option<String>>(1).map_err(reason)?;
    let key = key.map(JobKey::new).transpose().map_err(|error| error.to_string())?;
    let headers = match row.get::<_, Option<String>>(9).map_err(reason)? {
        None => Headers::new(),
        Some(json) => serde_json::from_str(&json)
            .map_err(|error| format!("the headers are not a JSON object of strings: {error}"))?,
    };
    let mut job = Job::new(
        JobId::from_bytes(row.get(0).map_err(reason)?),
        queue.clone(),
        row.get(2).map(Timestamp::from_millis).map_err(reason)?,
        row.get(4).map(Timestamp::from_millis).map_err(reason)?,
        payload(row).map_err(reason)?,
    );
    job.key = key;
    job.first_due = row.get(3).map(Timestamp::from_millis).map_err(reason)?;
    job.attempts = row.get(5).map_err(reason)?;
    job.deliveries = row.get(6).map_err(reason)?;
    job.losses = row.get(7).map_err(reason)?;
    job.max_attempts = row.get(8).map_err(reason)?;
    job.headers = headers;
    Ok(job)
}

fn payload(row: &Row<'_>) -> Result<Bytes> {
    Ok(Bytes::copy_from_slice(row.get_ref(10)?.as_bytes()?))
}

/// Unreadable columns get default values.
pub(crate) fn job_or_defaults(row: &Row<'_>, queue: &QueueName) -> Job {
    if let Ok(job) = job(row, queue) {
        return job;
    }
    let mut job = Job::new(
        JobId::from_bytes(row.get(0).unwrap_or_default()),
        queue.clone(),
        Timestamp::from_millis(row.get(2).unwrap_or_default()),
        Timestamp::from_millis(row.get(4).unwrap_or_default()),
        payload(row).unwrap_or_default(),
    );
    job.first_due = row.get(3).map_or(job.due, Timestamp::from_millis);
    job.attempts = row.get(5).unwrap_or_default();
    job.deliveries = row.get(6).unwrap_or_default();
    job.losses = row.get(7).unwrap_or_default();
    job.max_attempts = row.get(8).unwrap_or_default();
    job
}

/// NULL if there are none.
pub(crate) fn encode_headers(headers: &Headers) -> Option<String> {
    let encode =
        || serde_json::to_string(headers).expect("a map of strings to strings is always JSON");
    (!headers.is_empty()).then(encode)
}

pub(crate) fn waiting(row: &Row<'_>, queue: &QueueName, now: Timestamp) -> JobView {
    let job = job_or_defaults(row, queue);
    let state = if job.due > now { JobState::Scheduled } else { JobState::Ready };
    view(row, job, state)
}

fn view(row: &Row<'_>, job: Job, state: JobState) -> JobView {
    let mut view = JobView::new(job, state);
    view.last_error = row.get(LAST_ERROR).unwrap_or_default();
    view
}

/// Waits again, as if a write had ended the lease.
pub(crate) fn lapsed(row: &Row<'_>, queue: &QueueName, now: Timestamp) -> JobView {
    let mut view = waiting(row, queue, now);
    view.job.deliveries = view.job.deliveries.saturating_add(1);
    view.job.losses = view.job.losses.saturating_add(1);
    view
}

#[derive(Debug)]
pub(crate) struct LeaseShown {
    until: i64,
    worker: String,
    since: i64,
}

impl LeaseShown {
    /// Reads end, holder and start from the columns at `first`.
    pub(crate) fn read(row: &Row<'_>, first: usize) -> Result<Self> {
        Ok(Self { until: row.get(first)?, worker: row.get(first + 1)?, since: row.get(first + 2)? })
    }
}

pub(crate) fn lease(row: &Row<'_>) -> Result<LeaseShown> {
    LeaseShown::read(row, LAST_ERROR + 1)
}

pub(crate) fn running(row: &Row<'_>, queue: &QueueName, lease: LeaseShown) -> JobView {
    let mut job = job_or_defaults(row, queue);
    // A lease's delivery is added to the row only when the lease ends.
    job.deliveries = job.deliveries.saturating_add(1);
    let mut view = view(row, job, JobState::Running);
    view.leased_until = Some(Timestamp::from_millis(lease.until));
    view.leased_since = Some(Timestamp::from_millis(lease.since));
    view.worker = Some(lease.worker);
    view
}

pub(crate) fn dead(row: &Row<'_>, queue: &QueueName) -> Result<JobView> {
    let job = job_or_defaults(row, queue);
    let kind = DeadKind::from_name(row.get_ref(LAST_ERROR + 1)?.as_str()?);
    let reason = DeadReason { kind, message: row.get(LAST_ERROR + 2)? };
    let died = Timestamp::from_millis(row.get(JOB_COLUMNS + 1)?);
    let mut view = view(row, job, JobState::Dead);
    view.dead = Some((reason, died));
    Ok(view)
}

pub(crate) fn ended(row: &Row<'_>, queue: &QueueName) -> Result<JobView> {
    let mut view = view(row, job_or_defaults(row, queue), JobState::Ended);
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
