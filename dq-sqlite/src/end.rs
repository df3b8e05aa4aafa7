//! Ends a job: deletes its rows, adds it to the history, pins its id.

use dq_core::{Ending, QueueName};
use rusqlite::{OptionalExtension, Row, params};

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

struct Note {
    /// Pin time in milliseconds.
    remember: i64,
    started: Option<i64>,
    worker: Option<String>,
    last_error: Option<String>,
}

impl Note {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let (remember, started) = (row.get(0)?, row.get(1)?);
        Ok(Self { remember, started, worker: row.get(2)?, last_error: row.get(3)? })
    }
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
    let note = tx.prepare(&tx.statements.note)?.query_row([seq], Note::read).optional()?;
    add_to_history(tx, queue, queue_id, seq, table, end, note.as_ref())?;
    if let Some(note) = note {
        if note.remember > 0 {
            let until = tx.now.as_millis().saturating_add(note.remember);
            let sql = match table {
                JobTable::Live => &tx.statements.pin_job,
                JobTable::Dead => &tx.statements.pin_dead,
            };
            tx.prepare(sql)?.execute([seq, until])?;
            tx.ended().add_pin();
        }
        tx.prepare(&tx.statements.remove_note)?.execute([seq])?;
    }
    let sql = match table {
        JobTable::Live => &tx.statements.remove_job,
        JobTable::Dead => &tx.statements.remove_dead,
    };
    let removed = tx.prepare(sql)?.execute([seq])? == 1;
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
    table: JobTable,
    end: JobEnd<'_>,
    note: Option<&Note>,
) -> StoreResult<()> {
    let Some(limit) = tx.history.get(queue) else { return Ok(()) };
    if limit.max == 0 {
        // An earlier limit may have left rows.
        tx.ended().set_limit(queue_id, limit);
        return Ok(());
    }
    let JobEnd { ending, reason, lease } = end;
    let started = match lease {
        Some(lease) => Some(lease.since),
        None => note.and_then(|note| note.started),
    };
    let worker = match lease {
        Some(lease) => Some(lease.worker.as_str()),
        None => note.and_then(|note| note.worker.as_deref()),
    };
    let last_error = note.and_then(|note| note.last_error.as_deref());
    let now = tx.now.as_millis();
    let add = |tx: &WriteTx<'_>| match table {
        JobTable::Live => tx.prepare(&tx.statements.remember_job)?.execute(params![
            seq,
            now,
            // A lease's delivery is added to the row only when the lease ends.
            lease.is_some(),
            started,
            worker,
            last_error,
            ending.as_str(),
            reason,
        ]),
        JobTable::Dead => tx.prepare(&tx.statements.remember_dead)?.execute(params![
            seq,
            now,
            started,
            worker,
            last_error,
            ending.as_str(),
        ]),
    };
    let mut added = add(tx)? == 1;
    if !added && let Some(queue_id) = forget(tx, seq)? {
        tx.ended().remove(queue_id);
        added = add(tx)? == 1;
    }
    if added {
        tx.ended().add(queue_id, limit);
    }
    Ok(())
}

/// Returns the queue of the earlier end.
fn forget(tx: &WriteTx<'_>, seq: i64) -> StoreResult<Option<i64>> {
    let mut forget = tx.prepare(&tx.statements.forget_ended)?;
    Ok(forget.query_row([seq], |row| row.get(0)).optional()?)
}
