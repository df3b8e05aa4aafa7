//! The handler of schedule jobs.
//!
//! [`schedules`](super) explains the terms.

use std::sync::Arc;
use std::time::Duration;

use super::batch::Batches;
use super::occurrence::{Handled, ON_TIME, Plan, plan};
use super::schedule_job::{
    ORPHAN_GRACE, REMOVED, ScheduleJob, queue, schedule_job, waiting_in_time,
};
use crate::backend::Backend;
use crate::client::Dq;
use crate::config::QueuePolicy;
use crate::error::Result;
use crate::handler::{Handler, HandlerResult, JobContext, JobError, Outcome};
use crate::model::schedule::successor_id;
use crate::model::{
    Backoff, Due, DurationExt, Flow, JobKey, JobRef, JobState, Priority, Timestamp,
};

/// How long an unreadable schedule job waits for another runner.
const UNREADABLE_DELAY: Duration = Duration::from_secs(60);

/// How long a stopped schedule waits before it looks for a declaration again.
const ORPHAN_DELAY: Duration = Duration::from_secs(3_600);

pub(crate) fn handler(dq: &Dq) -> Handler {
    let (dq, batches) = (dq.clone(), Arc::new(Batches::new(dq)));
    let run_job = move |ctx: JobContext| {
        let (dq, batches) = (dq.clone(), Arc::clone(&batches));
        async move { run(&dq, &batches, &ctx).await.map_err(JobError::Failed) }
    };
    Handler::internal(queue(), "dq::recurring", Arc::new(move |ctx| Box::pin(run_job(ctx))))
}

/// The policy for schedule jobs: no failure ends a schedule.
pub(crate) fn policy() -> QueuePolicy {
    QueuePolicy {
        // The runner's total does not include these slots. They take several batches: one is
        // claimed while another is stored.
        concurrency: 256,
        priority: Priority::Normal,
        reserve: 0,
        max_attempts: u32::MAX,
        timeout: 1.minutes(),
        // A schedule job runs for milliseconds. After a crash, the schedule stands still for the
        // lease.
        lease: 5.seconds(),
        backoff: Backoff { initial: 1.seconds(), max: 1.minutes(), ..Backoff::default() },
        max_losses: u32::MAX,
        late: None,
        lateness: None,
        flow: Flow::UNLIMITED,
    }
}

async fn run(dq: &Dq, batches: &Batches, ctx: &JobContext) -> HandlerResult {
    let name = ctx.key().map(JobKey::as_str).ok_or("a schedule job without a key")?;
    if ctx.raw_payload() == REMOVED {
        return Ok(Outcome::Done);
    }
    let mut schedule_job = match ScheduleJob::decode(name, ctx.raw_payload()) {
        Ok(schedule_job) => schedule_job,
        Err(error) => {
            tracing::error!(schedule = name, %error, "the schedule waits for another runner");
            return Ok(Outcome::snooze(UNREADABLE_DELAY));
        }
    };
    if is_in_drained_store(dq, ctx).await? {
        return move_to_main_store(dq, ctx, name).await;
    }
    // This is the store's time.
    let now = ctx.due().saturating_add(ctx.lateness());
    if schedule_job.declared.is_some_and(|declared| now.since(declared.seen) > ORPHAN_GRACE) {
        tracing::warn!(
            schedule = name,
            "no process declares this schedule any more; it has stopped: remove it, or declare it"
        );
        return Ok(Outcome::snooze(ORPHAN_DELAY));
    }
    let horizon = dq.shared().limits.horizon;
    let next = schedule_occurrences(&mut schedule_job, name, now, horizon, batches).await?;
    let offset = schedule_job.spec.offset(name);
    let next = next.map(|next| next.saturating_add(offset));
    let retry = schedule_job.waiting.map(|waiting| {
        // A tenth of the wait so far: a soon start with few calls.
        let wait = (now - offset).since(waiting) / 10;
        now.saturating_add(wait.clamp(1.seconds(), 1.minutes()))
    });
    let Some(due) = next.into_iter().chain(retry).min() else {
        tracing::info!(schedule = name, "the schedule has ended: no time is left");
        return Ok(Outcome::Done);
    };
    let due = due.min(now.saturating_add(horizon));
    Ok(Outcome::Again(Due::At(due), schedule_job.encode()?))
}

async fn schedule_occurrences(
    schedule_job: &mut ScheduleJob,
    name: &str,
    now: Timestamp,
    horizon: Duration,
    batches: &Batches,
) -> Result<Option<Timestamp>> {
    let nominal_now = now - schedule_job.spec.offset(name);
    let Plan { mut occurrences, has_missed, cursor, next } =
        plan(&schedule_job.spec, schedule_job.cursor, nominal_now);
    if has_missed {
        tracing::warn!(schedule = name, until = cursor.as_millis(), "occurrences were missed");
    }
    schedule_job.cursor = cursor;
    let waiting = schedule_job.waiting.take();
    let waiting = waiting_in_time(&schedule_job.spec, waiting, nominal_now);
    occurrences.splice(0..0, waiting);
    if schedule_job.paused {
        occurrences.clear();
    }
    // A late policy covers the wait for a runner, not the wait caused by the schedule.
    let is_on_time = |first: &Timestamp| nominal_now.since(*first) <= ON_TIME;
    let has_waited = waiting.is_some() || !occurrences.first().is_none_or(is_on_time);
    let jobs = schedule_job.due_jobs(name, &occurrences, has_waited.then_some(now), horizon)?;
    let scheduled = if jobs.is_empty() { Vec::new() } else { batches.schedule(jobs).await? };
    for (occurrence, scheduled) in occurrences.into_iter().zip(scheduled) {
        match schedule_job.handled(name, occurrence, scheduled) {
            Handled::Stored => schedule_job.last = Some(occurrence),
            Handled::Waits if schedule_job.waiting.is_none() => {
                schedule_job.waiting = Some(occurrence);
            }
            Handled::Waits | Handled::Skipped => tracing::info!(
                schedule = name,
                occurrence = occurrence.as_millis(),
                "skipped: an earlier occurrence has not ended"
            ),
        }
    }
    Ok(next)
}

/// Returns whether this schedule job is not the main store's.
async fn is_in_drained_store(dq: &Dq, ctx: &JobContext) -> Result<bool> {
    let stores = &dq.shared().stores;
    if stores.drain.is_empty() {
        return Ok(false);
    }
    let found = stores.main.get(&JobRef::new(queue(), ctx.id())).await?;
    Ok(found.is_none_or(|view| view.state != JobState::Running))
}

async fn move_to_main_store(dq: &Dq, ctx: &JobContext, name: &str) -> HandlerResult {
    let id = successor_id(ctx.id());
    let job = schedule_job(id, name, ctx.due(), ctx.raw_payload().clone())?;
    let moved = dq.shared().stores.main.schedule(vec![job]).await?;
    tracing::info!(schedule = name, ?moved, "the schedule moves to the main store");
    Ok(Outcome::Done)
}
