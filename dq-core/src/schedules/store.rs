//! Reads and changes schedule jobs in the store.

use std::time::Duration;

use bytes::Bytes;

use super::schedule_job::{Declared, QUEUE, REMOVED, ScheduleJob, require_support, schedule_job};
use crate::backend::{Backend, Cancelled, Scheduled};
use crate::client::Dq;
use crate::error::{Error, ErrorKind, Result};
use crate::model::schedule::successor_id;
use crate::model::{JobView, OnConflict, ScheduleSpec};

/// Retries for a change while the schedule job runs. It runs for milliseconds, or until its lease
/// expires after a crash.
const ATTEMPTS: u32 = 400;
const PAUSE: Duration = Duration::from_millis(100);

/// Delays a removal job, so that no runner claims it meanwhile.
const REMOVAL_DELAY: Duration = Duration::from_secs(10);

pub(super) async fn find(dq: &Dq, name: &str) -> Result<Option<(JobView, ScheduleJob)>> {
    let view = dq.queue(QUEUE)?.get(name).await?;
    let Some(view) = view.filter(|view| view.job.payload != REMOVED) else { return Ok(None) };
    let schedule_job = ScheduleJob::decode(name, &view.job.payload)?;
    Ok(Some((view, schedule_job)))
}

/// Changes a schedule job, or creates one with `edit(None)`. Returns `false` if `edit` returns
/// `None`.
///
/// `edit` may be called several times, each time with fresh data. A time it read before may lie
/// before the cursor. Going back is harmless, because the ids in between are pinned.
pub(super) async fn change(
    dq: &Dq,
    name: &str,
    mut edit: impl FnMut(Option<ScheduleJob>) -> Option<ScheduleJob>,
) -> Result<bool> {
    require_support(&**dq.backend())?;
    ScheduleSpec::check_name(name)?;
    let queue = dq.queue(QUEUE)?;
    for _ in 0..ATTEMPTS {
        let found = queue.get(name).await?;
        let is_removal = found.as_ref().is_some_and(|found| found.job.payload == REMOVED);
        let (removal, old) = if is_removal { (found, None) } else { (None, found) };
        let schedule_job =
            old.as_ref().map(|old| ScheduleJob::decode(name, &old.job.payload)).transpose()?;
        let Some(schedule_job) = edit(schedule_job) else { return Ok(false) };
        if let Some(removal) = removal {
            // The call that began the removal may have ended. The name is free afterwards, even if
            // another call completes the removal.
            let _ = queue.cancel(removal.job.id).await?;
        }
        if write(dq, name, old.as_ref(), schedule_job).await? {
            return Ok(true);
        }
        dq.sleep(PAUSE).await;
    }
    Err(busy(name))
}

/// Replaces the old schedule job. Returns `false` if that runs or has changed.
async fn write(
    dq: &Dq,
    name: &str,
    old: Option<&JobView>,
    mut schedule_job: ScheduleJob,
) -> Result<bool> {
    let (id, policy) = match old {
        Some(old) => (successor_id(old.job.id), OnConflict::Replace),
        None => (dq.new_id(), OnConflict::Keep),
    };
    schedule_job.writer = (dq.shared().environment.entropy.bits() >> 64) as u64;
    let job =
        schedule_job.to_job(id, name, dq.backend().now().await?, dq.shared().limits.horizon)?;
    let stores = &dq.shared().stores;
    match stores.schedule_internal(job.on_conflict(policy)).await? {
        Scheduled::Replaced(_) if stores.drain.is_empty() => Ok(true),
        // Another process or an earlier attempt may have stored the id. Then only a job in a drained
        // store was replaced.
        Scheduled::Created(_) | Scheduled::Replaced(_) => {
            let found = find(dq, name).await?;
            Ok(found.is_some_and(|(_, found)| found.writer == schedule_job.writer))
        }
        Scheduled::Ended(_) => {
            // The old job was replaced before. In a drained store it stays if the call that did so
            // was interrupted.
            if let Some(old) = old.filter(|_| !stores.drain.is_empty()) {
                let _ = dq.queue(QUEUE)?.cancel(old.job.id).await?;
            }
            Ok(false)
        }
        Scheduled::Kept(_) | Scheduled::AlreadyRunning(_) => Ok(false),
    }
}

/// Stores a schedule from a call. Returns `false` if the store has exactly this schedule, made by a
/// call, and its cursor is not ahead of the store's clock.
pub(super) async fn upsert(dq: &Dq, name: &str, spec: &ScheduleSpec) -> Result<bool> {
    warn_if_rapid(name, spec);
    let now = dq.backend().now().await?;
    change(dq, name, |schedule_job| match schedule_job {
        Some(mut schedule_job) => {
            let was_declared = schedule_job.declared.take().is_some();
            let was_ahead = schedule_job.rewind(name, now);
            let is_same = schedule_job.spec == *spec;
            if !is_same {
                schedule_job.change_spec(name, spec.clone(), now);
            }
            (was_declared || was_ahead || !is_same).then_some(schedule_job)
        }
        None => Some(ScheduleJob::new(spec.clone(), now - spec.offset(name))),
    })
    .await
}

fn warn_if_rapid(name: &str, spec: &ScheduleSpec) {
    if spec.is_rapid() {
        tracing::warn!(schedule = name, times = %spec.times,
            "this schedule repeats within a second, and each occurrence costs several calls of the \
             store; is its interval meant?");
    }
}

pub(super) async fn declare(dq: &Dq, name: &str, spec: &ScheduleSpec) -> Result<()> {
    warn_if_rapid(name, spec);
    let now = dq.backend().now().await?;
    let changed = change(dq, name, |schedule_job| {
        let Some(mut schedule_job) = schedule_job else {
            let mut schedule_job = ScheduleJob::new(spec.clone(), now - spec.offset(name));
            schedule_job.declared = Some(Declared { generation: 1, seen: now });
            if spec.next_after(schedule_job.cursor).is_none() {
                // It has ended, and ends again at each program start.
                tracing::warn!(schedule = name, times = %spec.times,
                    "this declaration has no time in the future; it is not stored");
                return None;
            }
            return Some(schedule_job);
        };
        let was_ahead = schedule_job.rewind(name, now);
        let is_same = schedule_job.spec == *spec;
        let generation = match schedule_job.declared {
            Some(declared) if is_same && declared.is_recent(now) && !was_ahead => return None,
            Some(declared) => declared.generation + u64::from(!is_same),
            None => 1,
        };
        schedule_job.declared = Some(Declared { generation, seen: now });
        if !is_same {
            tracing::info!(schedule = name, generation, old = %schedule_job.spec.times,
                new = %spec.times, "this declaration replaces another one");
            schedule_job.change_spec(name, spec.clone(), now);
        }
        Some(schedule_job)
    });
    changed.await.map(|_| ())
}

/// Renames a schedule that a handler declared under an earlier code. Keeps its pause and missed
/// occurrences. Leaves schedules made by a call or another declaration alone.
pub(super) async fn rename(dq: &Dq, alias: &str, name: &str) -> Result<()> {
    let Some((_, schedule_job)) = find(dq, alias).await? else { return Ok(()) };
    if schedule_job.declared.is_none() || schedule_job.spec.queue.as_str() != alias {
        return Ok(());
    }
    // In this order, so that a crash in between does not lose the schedule. Both exist until
    // another process starts.
    let renamed =
        change(dq, name, |present| present.is_none().then(|| schedule_job.clone())).await?;
    remove(dq, alias).await?;
    if renamed {
        tracing::info!(schedule = name, alias, "the schedule has a new name");
    } else {
        tracing::info!(schedule = name, alias, "the schedule exists; that of the alias is removed");
    }
    Ok(())
}

pub(super) async fn refresh(dq: &Dq, name: &str) -> Result<()> {
    let now = dq.backend().now().await?;
    let changed = change(dq, name, |schedule_job| {
        let mut schedule_job = schedule_job?;
        let was_ahead = schedule_job.rewind(name, now);
        let declared = schedule_job.declared.as_mut()?;
        if declared.is_recent(now) && !was_ahead {
            return None;
        }
        declared.seen = now;
        Some(schedule_job)
    });
    changed.await.map(|_| ())
}

/// Removes a schedule. Returns `false` if it does not exist.
///
/// A call that read the schedule job before may still write its successor. So `remove` first stores
/// a removal job with the successor's id. No call treats it as a schedule job. The id stays pinned
/// after the removal job is cancelled.
pub(super) async fn remove(dq: &Dq, name: &str) -> Result<bool> {
    let queue = dq.queue(QUEUE)?;
    // A job of a drained store stays if the call that replaced it was interrupted: look once more.
    let is_alone = dq.shared().stores.drain.is_empty();
    let mut is_removed = false;
    for _ in 0..ATTEMPTS {
        // Does not read the payload, so that a damaged schedule can be removed.
        let Some(JobView { job: old, .. }) = queue.get(name).await? else {
            return Ok(is_removed);
        };
        let cancelled = if old.payload == REMOVED {
            // Another process is removing it, or ended before it could.
            queue.cancel(old.id).await?
        } else {
            let id = successor_id(old.id);
            let due = dq.backend().now().await?.saturating_add(REMOVAL_DELAY);
            let last = schedule_job(id, name, due, Bytes::from_static(REMOVED))?;
            let last = last.on_conflict(OnConflict::Replace);
            match dq.shared().stores.schedule_internal(last).await? {
                Scheduled::Replaced(_) => {
                    is_removed = true;
                    match queue.cancel(id).await? {
                        Cancelled::NotFound if is_alone => return Ok(true),
                        cancelled => cancelled,
                    }
                }
                // The job may be a schedule job, if a concurrent change stored this id first. If
                // another change has replaced it, the cancel finds nothing, and the loop repeats.
                Scheduled::Created(_) => queue.cancel(id).await?,
                // A schedule job with that id existed, and was replaced or removed meanwhile. No
                // call can store it again.
                Scheduled::Ended(_) => queue.cancel(old.id).await?,
                Scheduled::Kept(_) | Scheduled::AlreadyRunning(_) => Cancelled::AlreadyRunning,
            }
        };
        match cancelled {
            Cancelled::Cancelled if is_alone => return Ok(true),
            Cancelled::Cancelled => is_removed = true,
            // It runs, or another call replaced it.
            Cancelled::AlreadyRunning | Cancelled::NotFound => dq.sleep(PAUSE).await,
        }
    }
    Err(busy(name))
}

fn busy(name: &str) -> Error {
    let message = format!("the schedule {name} is being handled by a runner that does not end");
    Error::new(ErrorKind::Unavailable, message).remedy("try again")
}
