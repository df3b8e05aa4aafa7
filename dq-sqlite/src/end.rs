//! Ends a job: deletes its rows, adds it to the history, pins its id.

use dq_core::{Ending, QueueName};
use rusqlite::params;

use crate::error::StoreResult;
use crate::write_tx::{EndedLease, WriteTx};

#[derive(Debug, Clone, Copy)]
pub(crate) enum JobTable {
    Live,
    Dead,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct JobEnd<'a> {
    pub(crate) ending: Ending,
    /// For a skip. A dead job's reason is in its row.
    pub(crate) reason: Option<&'a str>,
    pub(crate) lease: Option<&'a EndedLease>,
}

impl JobEnd<'_> {
    pub(crate) const fn unleased(ending: Ending) -> Self {
        Self { ending, reason: None, lease: None }
    }
}

#[derive(Default)]
struct Note {
    /// Pin time in milliseconds.
    remember: i64,
    started: Option<i64>,
    worker: Option<String>,
    last_error: Option<String>,
}

/// Returns `false` if the job has no row. The caller has removed its `due` or `lease` row.
pub(crate) fn end_job(
    tx: &mut WriteTx<'_>,
    queue: &QueueName,
    queue_id: i64,
    seq: i64,
    table: JobTable,
    end: JobEnd<'_>,
) -> StoreResult<bool> {
    let note = tx.find(&tx.statements.note, [seq], |row| {
        let (remember, started) = (row.get(0)?, row.get(1)?);
        Ok(Note { remember, started, worker: row.get(2)?, last_error: row.get(3)? })
    })?;
    let (remember, pin, remove) = match table {
        JobTable::Live => {
            (&tx.statements.remember_job, &tx.statements.pin_job, &tx.statements.remove_job)
        }
        JobTable::Dead => {
            (&tx.statements.remember_dead, &tx.statements.pin_dead, &tx.statements.remove_dead)
        }
    };
    let has_note = note.is_some();
    let note = note.unwrap_or_default();
    add_to_history(tx, queue, queue_id, seq, remember, end, &note)?;
    if note.remember > 0 {
        let until = tx.now.as_millis().saturating_add(note.remember);
        tx.execute(pin, [seq, until])?;
        tx.ended().add_pin();
    }
    if has_note {
        tx.execute(&tx.statements.remove_note, [seq])?;
    }
    let removed = tx.execute(remove, [seq])? == 1;
    let totals = tx.totals(queue_id);
    let total = match end.ending {
        Ending::Done => &mut totals.done,
        Ending::Skipped => &mut totals.skipped,
        Ending::Cancelled => &mut totals.cancelled,
        Ending::Replaced => &mut totals.replaced,
        _ => &mut totals.removed,
    };
    *total += u64::from(removed);
    Ok(removed)
}

fn add_to_history(
    tx: &mut WriteTx<'_>,
    queue: &QueueName,
    queue_id: i64,
    seq: i64,
    remember: &str,
    end: JobEnd<'_>,
    note: &Note,
) -> StoreResult<()> {
    let Some(limit) = tx.history.get(queue) else { return Ok(()) };
    if limit.max == 0 {
        // An earlier limit may have left rows.
        tx.ended().set_limit(queue_id, limit);
        return Ok(());
    }
    let JobEnd { ending, reason, lease } = end;
    let (started, worker) = match lease {
        Some(lease) => (Some(lease.since), Some(&lease.worker)),
        None => (note.started, note.worker.as_ref()),
    };
    // A lease's delivery is added to the row only when the lease ends.
    let deliveries = lease.is_some();
    let (at, ending) = (tx.now.as_millis(), ending.as_str());
    let add = |tx: &WriteTx<'_>| {
        let values = params![seq, at, deliveries, started, worker, note.last_error, ending, reason];
        tx.execute(remember, values)
    };
    let mut added = add(tx)? == 1;
    if !added {
        // The id has ended before, perhaps in another queue.
        let earlier = tx.find(&tx.statements.forget_ended, [seq], |row| row.get(0))?;
        if let Some(queue_id) = earlier {
            tx.ended().remove(queue_id);
            added = add(tx)? == 1;
        }
    }
    if added {
        tx.ended().add(queue_id, limit);
    }
    Ok(())
}
