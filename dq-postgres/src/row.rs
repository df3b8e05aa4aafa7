//! Converts rows to jobs.

use bytes::Bytes;
use dq_core::{
    DeadKind, DeadReason, Ended, Ending, Job, JobKey, JobState, JobView, QueueName, Timestamp,
};
use tokio_postgres::{Error, Row};

use crate::params;

type Result<T> = std::result::Result<T, Error>;

/// Reads a job from the columns that all listings have. Also returns why the row is invalid, if it
/// is: other programs may write anything. Fields that cannot be read then have default values.
pub(crate) fn job(row: &Row, queue: &QueueName, payload: Bytes) -> Result<(Job, Option<String>)> {
    let mut invalid = None;
    let due = Timestamp::from_millis(row.try_get("due")?);
    let created = Timestamp::from_millis(row.try_get("created")?);
    let mut job =
        Job::new(params::job_id(row.try_get("id")?), queue.clone(), due, created, payload);
    let key: Option<String> = row.try_get("key")?;
    job.key = key.map(JobKey::new).transpose().unwrap_or_else(|error| {
        invalid = Some(error.message().to_owned());
        None
    });
    let first_due: Option<i64> = row.try_get("first_due")?;
    job.first_due = first_due.map_or(due, Timestamp::from_millis);
    job.attempts = unsigned(row.try_get("attempts")?);
    job.deliveries = unsigned(row.try_get("deliveries")?);
    job.losses = unsigned(row.try_get("losses")?);
    let limit: Option<i64> = row.try_get("max_attempts")?;
    job.max_attempts = limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
    if let Some(json) = row.try_get::<_, Option<&str>>("headers")? {
        match serde_json::from_str(json) {
            Ok(headers) => job.headers = headers,
            Err(error) => {
                invalid = Some(format!("the headers are not a JSON object of strings: {error}"));
            }
        }
    }
    Ok((job, invalid))
}

fn unsigned(count: i32) -> u32 {
    u32::try_from(count).unwrap_or(0)
}

/// Reads a job of any state. A job with an expired lease waits again.
pub(crate) fn view(row: &Row, queue: &QueueName, now: i64) -> Result<JobView> {
    let payload: Option<&[u8]> = row.try_get("payload")?;
    let (mut job, _) = job(row, queue, payload.map(Bytes::copy_from_slice).unwrap_or_default())?;
    let at: i64 = row.try_get("at")?;
    let state: i16 = row.try_get("state")?;
    let is_running = state == 1 && at > now;
    if state == 1 && !is_running {
        // It may be -1, see `groups.sql`.
        job.losses = unsigned(row.try_get::<_, i32>("losses")?.saturating_add(1));
    }
    let job_state = match state {
        2 => JobState::Dead,
        3.. => JobState::Ended,
        _ if is_running => JobState::Running,
        _ if job.due.as_millis() > now => JobState::Scheduled,
        _ => JobState::Ready,
    };
    let mut view = JobView::new(job, job_state);
    view.last_error = row.try_get("last_error")?;
    let at = Timestamp::from_millis(at);
    let message: Option<String> = row.try_get("message")?;
    let kind: Option<&str> = row.try_get("kind")?;
    if is_running {
        view.leased_until = Some(at);
    }
    if is_running || job_state == JobState::Ended {
        view.worker = row.try_get("worker")?;
        view.leased_since = row.try_get::<_, Option<i64>>("since")?.map(Timestamp::from_millis);
    }
    match job_state {
        JobState::Dead => {
            let kind = DeadKind::from_name(kind.unwrap_or_default());
            view.dead = Some((DeadReason { kind, message: message.unwrap_or_default() }, at));
        }
        JobState::Ended => {
            // A later version may know other endings.
            let ending = kind.and_then(Ending::from_name).unwrap_or(Ending::Removed);
            let mut ended = Ended::new(ending, at);
            ended.reason = message;
            view.ended = Some(ended);
        }
        _ => {}
    }
    Ok(view)
}
