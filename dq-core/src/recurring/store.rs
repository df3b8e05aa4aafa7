//! Reads and changes tickers in the store.

use std::time::Duration;

use bytes::Bytes;

use super::ticker::{self, Declared, REMOVED, Ticker, require_support, ticker_job};
use crate::backend::{Backend, Cancelled, Scheduled};
use crate::client::Dq;
use crate::error::{Error, ErrorKind, Result};
use crate::model::schedule::successor_id;
use crate::model::{JobView, OnConflict, ScheduleSpec, Timestamp};

/// How often a change is tried again while the ticker runs, and the time in between. A ticker runs
/// for some milliseconds, or until its lease ends if its runner has crashed.
const ATTEMPTS: u32 = 400;
const PAUSE: Duration = Duration::from_millis(100);

/// The job in place of a ticker that is removed is not due before, so that no runner claims it
/// meanwhile.
const REMOVAL: Duration = Duration::from_secs(10);

/// The time by the clock of the main store.
pub(super) async fn now(dq: &Dq) -> Result<Timestamp> {
    dq.backend().now().await
}

/// The ticker of a schedule.
pub(super) async fn find(dq: &Dq, name: &str) -> Result<Option<(JobView, Ticker)>> {
    let view = dq.queue(ticker::QUEUE)?.get(name).await?;
    let Some(view) = view.filter(|view| view.job.payload != REMOVED) else { return Ok(None) };
    let ticker = Ticker::decode(name, &view.job.payload)?;
    Ok(Some((view, ticker)))
}

/// Changes the ticker of a schedule, or creates one by `change(None)`. Returns whether it was changed:
/// `false` if `change` returns `None`.
///
/// `change` may be called several times, each time with what the store has then. A time that it has
/// read before may be older than the ticker's cursor. To go back to that is harmless: the ids of
/// the occurrences in between are pinned.
pub(super) async fn change(
    dq: &Dq,
    name: &str,
    mut change: impl FnMut(Option<Ticker>) -> Option<Ticker>,
) -> Result<bool> {
    require_support(&**dq.backend())?;
    ScheduleSpec::check_name(name)?;
    let queue = dq.queue(ticker::QUEUE)?;
    for _ in 0..ATTEMPTS {
        let found = queue.get(name).await?;
        let is_removal = found.as_ref().is_some_and(|found| found.job.payload == REMOVED);
        let (removal, old) = if is_removal { (found, None) } else { (None, found) };
        let ticker = old.as_ref().map(|old| Ticker::decode(name, &old.job.payload)).transpose()?;
        let Some(ticker) = change(ticker) else { return Ok(false) };
        if let Some(removal) = removal {
            // The call that has begun it may have ended. The name is free afterwards, even if another
            // call has completed it meanwhile.
            let _ = queue.cancel(removal.job.id).await?;
        }
        if write(dq, name, old.as_ref(), ticker).await? {
            return Ok(true);
        }
        dq.sleep(PAUSE).await;
    }
    Err(busy(name))
}

/// Stores a ticker in place of the old one, or a new one if there is none. `false` if it runs, or
/// was changed meanwhile.
async fn write(dq: &Dq, name: &str, old: Option<&JobView>, mut ticker: Ticker) -> Result<bool> {
    let (id, policy) = match old {
        Some(old) => (successor_id(old.job.id), OnConflict::Replace),
        None => (dq.new_id(), OnConflict::Keep),
    };
    ticker.writer = (dq.shared().environment.entropy.bits() >> 64) as u64;
    let job = ticker.to_job(id, name, now(dq).await?, dq.shared().limits.horizon)?;
    match dq.shared().stores.schedule_internal(job.on_conflict(policy)).await? {
        Scheduled::Replaced(_) => Ok(true),
        // The id may have been there, stored by another process or by an earlier attempt of this
        // call.
        Scheduled::Created(_) => {
            let found = find(dq, name).await?;
            Ok(found.is_some_and(|(_, found)| found.writer == ticker.writer))
        }
        Scheduled::Kept(_) | Scheduled::AlreadyRunning(_) | Scheduled::Ended(_) => Ok(false),
    }
}

/// Stores a schedule by a call of the application. `false` if the store has exactly this one, made by
/// a call.
pub(super) async fn upsert(dq: &Dq, name: &str, spec: &ScheduleSpec) -> Result<bool> {
    warn_if_rapid(name, spec);
    let now = now(dq).await?;
    change(dq, name, |ticker| match ticker {
        Some(mut ticker) => {
            // From now on, it is the schedule of a call.
            let was_declared = ticker.declared.take().is_some();
            let was_ahead = ticker.rewind(name, now);
            let is_same = ticker.spec == *spec;
            if !is_same {
                ticker.change_spec(name, spec.clone(), now);
            }
            (was_declared || was_ahead || !is_same).then_some(ticker)
        }
        None => Some(Ticker::new(spec.clone(), now - spec.offset(name))),
    })
    .await
}

fn warn_if_rapid(name: &str, spec: &ScheduleSpec) {
    if spec.is_rapid() {
        tracing::warn!(schedule = name, recurrence = %spec.recurrence,
            "this schedule repeats within a second, and each occurrence costs several calls of the \
             store; is its interval meant?");
    }
}

/// Stores a schedule that the program declares.
pub(super) async fn declare(dq: &Dq, name: &str, spec: &ScheduleSpec) -> Result<()> {
    warn_if_rapid(name, spec);
    let now = now(dq).await?;
    let changed = change(dq, name, |ticker| {
        let Some(mut ticker) = ticker else {
            let mut ticker = Ticker::new(spec.clone(), now - spec.offset(name));
            ticker.declared = Some(Declared { generation: 1, seen: now });
            if !ticker.has_time_left() {
                // It has ended, and does so again with each start of the program.
                tracing::warn!(schedule = name, recurrence = %spec.recurrence,
                    "this declaration has no time in the future; it is not stored");
                return None;
            }
            return Some(ticker);
        };
        let was_ahead = ticker.rewind(name, now);
        let is_same = ticker.spec == *spec;
        let generation = match ticker.declared {
            Some(declared) if is_same && declared.is_recent(now) && !was_ahead => return None,
            Some(declared) => declared.generation + u64::from(!is_same),
            None => 1,
        };
        ticker.declared = Some(Declared { generation, seen: now });
        if !is_same {
            tracing::info!(schedule = name, generation, old = %ticker.spec.recurrence,
                new = %spec.recurrence, "this declaration replaces another one");
            ticker.change_spec(name, spec.clone(), now);
        }
        Some(ticker)
    });
    changed.await.map(|_| ())
}

/// Gives the schedule that a handler has declared under an earlier code the present one, with its
/// pause and what it has missed; does nothing if a call or another declaration has made it.
pub(super) async fn rename(dq: &Dq, alias: &str, name: &str) -> Result<()> {
    let Some((_, ticker)) = find(dq, alias).await? else { return Ok(()) };
    if ticker.declared.is_none() || ticker.spec.queue.as_str() != alias {
        return Ok(());
    }
    // In this order, so that the schedule is not lost if this process ends in between. Until another
    // one starts, both are there then.
    change(dq, name, |present| present.is_none().then(|| ticker.clone())).await?;
    remove(dq, alias).await?;
    tracing::info!(schedule = name, alias, "the schedule has a new name");
    Ok(())
}

/// Says that a process declares the schedule, whatever the store has for it.
pub(super) async fn refresh(dq: &Dq, name: &str) -> Result<()> {
    let now = now(dq).await?;
    let changed = change(dq, name, |ticker| {
        let mut ticker = ticker?;
        let was_ahead = ticker.rewind(name, now);
        let declared = ticker.declared.as_mut()?;
        if declared.is_recent(now) && !was_ahead {
            return None;
        }
        declared.seen = now;
        Some(ticker)
    });
    changed.await.map(|_| ())
}

/// Removes a schedule. `false` if there is none.
///
/// A call that has read the ticker before may still write its successor. So a job with the id of
/// that successor takes its place first, which no call takes for a ticker: when it is cancelled,
/// its id stays pinned.
pub(super) async fn remove(dq: &Dq, name: &str) -> Result<bool> {
    let queue = dq.queue(ticker::QUEUE)?;
    for _ in 0..ATTEMPTS {
        // The payload is not read, so that a damaged one can be removed.
        let Some(JobView { job: old, .. }) = queue.get(name).await? else { return Ok(false) };
        let cancelled = if old.payload == REMOVED {
            // Another process is about to remove it, or has ended before it could.
            queue.cancel(old.id).await?
        } else {
            let id = successor_id(old.id);
            let due = now(dq).await?.saturating_add(REMOVAL);
            let last = ticker_job(id, name, due, Bytes::from_static(REMOVED))?;
            let last = last.on_conflict(OnConflict::Replace);
            match dq.shared().stores.schedule_internal(last).await? {
                Scheduled::Replaced(_) => match queue.cancel(id).await? {
                    // Another call has completed the removal.
                    Cancelled::NotFound => return Ok(true),
                    cancelled => cancelled,
                },
                // Perhaps it is a ticker: a change was quicker, and a second one may be, too.
                Scheduled::Created(_) => queue.cancel(id).await?,
                // A ticker with that id has been there, and was replaced or removed meanwhile.
                Scheduled::Ended(_) => queue.cancel(name).await?,
                Scheduled::Kept(_) | Scheduled::AlreadyRunning(_) => Cancelled::AlreadyRunning,
            }
        };
        match cancelled {
            Cancelled::Cancelled => return Ok(true),
            // It runs, or another call has replaced it.
            Cancelled::AlreadyRunning | Cancelled::NotFound => dq.sleep(PAUSE).await,
        }
    }
    Err(busy(name))
}

fn busy(name: &str) -> Error {
    let message = format!("the schedule {name} is being handled by a runner that does not end");
    Error::new(ErrorKind::Unavailable, message).remedy("try again")
}
