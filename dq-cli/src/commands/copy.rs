//! Copies jobs, which a query reads from tables.

use std::collections::{BTreeSet, HashMap};

use dq_core::{Backend as _, Dq, JobId, NewJob, QueueName, Scheduled, Timestamp};
use dq_postgres::{QueryRow, QueryRows, QuerySource};
use serde_json::json;

use crate::args::QueryArgs;
use crate::failure::{FAILED, Failure, Result};
use crate::output::Output;
use crate::source::Local;
use crate::text;

/// Further invalid rows are only counted.
const MAX_REASONS: usize = 20;

pub(crate) fn run(args: &QueryArgs, store: &Local, output: &mut Output<'_>) -> Result<()> {
    let mut source = QuerySource::new(&args.from.from, &args.query)?;
    if let Some(queue) = &args.queue {
        source = source.queue(queue.clone());
    }
    // All rows are read before the first job is stored, and then again from the same snapshot.
    let (mut rows, checked) = output.during("reading the query's rows", || {
        store.wait_for(async |dq| {
            let mut rows = source.open().await?;
            let checked = check(dq, &mut rows).await?;
            Ok((rows, checked))
        })
    })?;
    if checked.invalid > 0 {
        checked.reasons.iter().for_each(|reason| output.note(&text::clean(reason)));
        let (invalid, all) = (checked.invalid, text::count(checked.invalid + checked.jobs, "row"));
        return Err(Failure::usage(
            format!("{invalid} of {all} cannot be imported; nothing was changed"),
            "correct the query, or leave these rows out",
        ));
    }
    let (jobs, queues) = (text::count(checked.jobs, "job"), checked.queue_names());
    let what = format!("{jobs} of the query can be imported{queues}");
    if args.from.dry_run {
        let value = json!({
            "action": "import", "dry_run": true, "source": "the query", "importable": checked.jobs,
        });
        return output.either(&value, || format!("{what}\n"));
    }
    if !args.from.yes {
        let message = format!("{what}; nothing was changed");
        return Err(Failure::usage(message, "repeat the command with --yes"));
    }
    let mut stored = Stored::default();
    let done = output.during(&format!("importing {jobs}{queues}"), || {
        store.wait_for(async |dq| store_rows(dq, &mut rows, &mut stored).await)
    });
    if let Err(failure) = done {
        let imported = text::count(stored.imported, "job");
        output.note(&format!("imported {imported}; repeat the command for the others"));
        return Err(failure);
    }
    stored.report(&queues, output)
}

#[derive(Default)]
struct Checked {
    jobs: u64,
    queues: BTreeSet<QueueName>,
    invalid: u64,
    reasons: Vec<String>,
}

impl Checked {
    fn queue_names(&self) -> String {
        match self.queues.iter().next() {
            Some(queue) if self.queues.len() == 1 => {
                format!(" into {}", text::clean(queue.as_str()))
            }
            Some(_) => format!(" into {} queues", self.queues.len()),
            None => String::new(),
        }
    }
}

async fn check(dq: &Dq, rows: &mut QueryRows) -> Result<Checked> {
    let now = dq.backend().now().await?;
    let mut checked = Checked::default();
    let mut ids = HashMap::new();
    loop {
        let batch = rows.next().await?;
        if batch.is_empty() {
            return Ok(checked);
        }
        for QueryRow { number, job } in batch {
            match job.and_then(|job| check_job(dq, now, number, &job, &mut ids).map(|()| job)) {
                Ok(job) => {
                    checked.jobs += 1;
                    checked.queues.insert(job.queue);
                }
                Err(reason) => {
                    checked.invalid += 1;
                    if checked.reasons.len() < MAX_REASONS {
                        checked.reasons.push(format!("row {number}, {reason}"));
                    }
                }
            }
        }
    }
}

/// Refuses jobs beyond the limits, and a repeated id: the store would keep only the first job.
fn check_job(
    dq: &Dq,
    now: Timestamp,
    number: u64,
    job: &NewJob,
    ids: &mut HashMap<JobId, u64>,
) -> Result<(), String> {
    let refused = |column, error: dq_core::Error| format!("column {column}: {}", error.message());
    job.queue.refuse_reserved().map_err(|error| refused("queue", error))?;
    job.due.validate(now, dq.limits().horizon).map_err(|error| refused("due", error))?;
    dq.limits().check(job, now).map_err(|error| error.message().to_owned())?;
    match ids.insert(job.id, number) {
        None => Ok(()),
        Some(first) => Err(format!("column id: row {first} has the same")),
    }
}

/// Rows by outcome.
#[derive(Default)]
struct Stored {
    imported: u64,
    /// An earlier import has stored the job, which has ended.
    ended: u64,
    /// Another job has the key or the id.
    kept: u64,
}

async fn store_rows(dq: &Dq, rows: &mut QueryRows, stored: &mut Stored) -> Result<()> {
    rows.rewind().await?;
    loop {
        let batch = rows.next().await?;
        if batch.is_empty() {
            return Ok(());
        }
        let jobs: Result<Vec<NewJob>, String> = batch.into_iter().map(|row| row.job).collect();
        let jobs = jobs.map_err(|reason| Failure::usage(reason, "the rows have changed"))?;
        for chunk in jobs.chunks(dq.limits().bulk.max(1)) {
            for result in dq.schedule_jobs(chunk.to_vec()).await? {
                match result {
                    Scheduled::Created(_) | Scheduled::Replaced(_) => stored.imported += 1,
                    Scheduled::Ended(_) => stored.ended += 1,
                    _ => stored.kept += 1,
                }
            }
        }
    }
}

impl Stored {
    fn report(&self, queues: &str, output: &mut Output<'_>) -> Result<()> {
        let Self { imported, ended, kept } = *self;
        let value = json!({
            "action": "import", "dry_run": false, "source": "the query", "imported": imported,
            "ended": ended, "kept": kept,
        });
        output.either(&value, || {
            format!("imported {} of the query{queues}\n", text::count(imported, "job"))
        })?;
        if ended > 0 {
            let jobs = text::count(ended, "job");
            output
                .note(&format!("{jobs} of an earlier import ended before, and will not run again"));
        }
        if kept > 0 {
            let jobs = text::count(kept, "job");
            output.note(&format!("{jobs} not stored: another job has the key or the id"));
            return Err(Failure::Reported(FAILED));
        }
        Ok(())
    }
}
