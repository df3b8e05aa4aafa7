//! `dq jobs cancel`, `move`, `run`, `replay` and `rm`: one job, or all matching jobs.

use dq_core::{Due, Target, Timestamp};
use dq_ops::{BulkAction, JobFilter};
use serde_json::{Value, json};

use crate::args::ChangeArgs;
use crate::failure::{CONFLICT, Failure, Result};
use crate::output::Output;
use crate::source::Source;
use crate::text;

/// What the command does to a job.
#[derive(Clone, Copy)]
enum Change {
    Cancelled,
    Moved,
    DueNow,
    Replayed,
    Removed,
    /// Of a later version.
    Other(&'static str),
}

impl Change {
    fn of(action: BulkAction) -> Self {
        match action {
            BulkAction::Cancel => Self::Cancelled,
            BulkAction::Reschedule(due) if due == Due::NOW => Self::DueNow,
            BulkAction::Replay => Self::Replayed,
            BulkAction::Remove => Self::Removed,
            BulkAction::Reschedule(_) => Self::Moved,
            action => Self::Other(action.as_str()),
        }
    }

    const fn participle(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Moved => "moved",
            Self::DueNow => "made due now",
            Self::Replayed => "replayed",
            Self::Removed => "removed",
            Self::Other(action) => action,
        }
    }

    /// Says that this has happened to `what`, which are so many jobs.
    fn report(self, what: &str, jobs: u64) -> String {
        match self {
            Self::DueNow => format!("{what} {} due now", if jobs == 1 { "is" } else { "are" }),
            _ => format!("{} {what}", self.participle()),
        }
    }
}

enum Selection<'a> {
    One(&'a Target),
    Many(JobFilter),
}

/// Returns the selected jobs. Refuses arguments that select one job and many, or none.
fn selection(args: &ChangeArgs) -> Result<Selection<'_>> {
    let filter = args.filter.filter();
    match (&args.job, filter.is_empty(), args.all) {
        (Some(job), true, false) if !args.yes => Ok(Selection::One(job)),
        (Some(_), ..) => Err(Failure::usage(
            "a job is given, and options for many jobs",
            "give the job alone, or the options alone",
        )),
        (None, false, false) | (None, true, true) => Ok(Selection::Many(filter)),
        (None, false, true) => Err(Failure::usage(
            "--all is given, and options that select jobs",
            "give --all alone, or the options alone",
        )),
        (None, true, false) => Err(Failure::usage(
            "no job is given",
            "give an id or key:…, or --all, or options such as --key-prefix",
        )),
    }
}

pub(super) fn change(
    args: &ChangeArgs,
    action: BulkAction,
    source: &Source,
    output: &mut Output<'_>,
) -> Result<()> {
    match selection(args)? {
        Selection::Many(filter) => many(args, action, &filter, source, output),
        Selection::One(job) => {
            let due = source.change(&args.queue, job, action)?;
            one(args, job, Change::of(action), due, output)
        }
    }
}

fn one(
    args: &ChangeArgs,
    job: &Target,
    change: Change,
    due: Option<Timestamp>,
    output: &mut Output<'_>,
) -> Result<()> {
    let name = match job {
        Target::Id(id) => id.to_string(),
        Target::Key(key) => format!("key:{key}"),
    };
    let result = match change {
        Change::DueNow => Change::Moved,
        change => change,
    };
    let mut value = json!({ "queue": args.queue, "job": name, "result": result.participle() });
    if let Some(due) = due {
        value["due"] = Value::from(due.to_string());
    }
    output.either(&value, || {
        let name = format!("{}/{}", text::clean(args.queue.as_str()), text::clean(&name));
        let due = due.filter(|_| matches!(change, Change::Moved));
        let due = due.map(|due| format!(", due {due}")).unwrap_or_default();
        format!("{}{due}\n", change.report(&name, 1))
    })
}

fn many(
    args: &ChangeArgs,
    action: BulkAction,
    filter: &JobFilter,
    source: &Source,
    output: &mut Output<'_>,
) -> Result<()> {
    let change = Change::of(action);
    let (queue, done) = (text::clean(args.queue.as_str()), change.participle());
    let count = output.during(&format!("counting jobs of {queue}"), || {
        source.count(&args.queue, action, filter)
    })?;
    let at_least = if count.complete { "" } else { "at least " };
    let jobs = text::count(count.matching, "job");
    let counted = format!("{at_least}{jobs} of {queue} can be {done}");
    if count.complete && count.matching == 0 {
        // Distinguishes a misspelt queue from a filter without matches.
        source.queue(&args.queue)?;
        let states: Vec<_> = action.states().iter().map(ToString::to_string).collect();
        let message = format!("no job of {queue} can be {done}: none matches");
        let remedy = format!("`dq jobs ls {queue} --state {}` lists them", states.join(","));
        return Err(Failure::new("not found", message, &remedy));
    }
    if !args.yes {
        let message = format!("{counted}; nothing was changed");
        return Err(Failure::usage(message, "repeat the command with --yes"));
    }
    output.note(&counted);
    // An incomplete count limits nothing.
    let expected = count.complete.then_some(count.matching);
    let what = format!("{}: {jobs} of {queue}", action.as_str());
    let report = output.during(&what, || source.bulk(&args.queue, action, filter, expected))?;
    let value =
        json!({ "queue": args.queue, "action": action.as_str(), "changed": report.changed });
    output.either(&value, || {
        let jobs = format!("{} of {queue}", text::count(report.changed, "job"));
        format!("{}\n", change.report(&jobs, report.changed))
    })?;
    let left = count.matching.saturating_sub(report.changed);
    if left > 0 {
        let why = match action {
            BulkAction::Replay => "a live job has the key, or another command was first",
            _ => "a runner or another command was first",
        };
        output.note(&format!("{} stayed as before: {why}", text::count(left, "job")));
    }
    match report.changed {
        0 => Err(Failure::Reported(CONFLICT)),
        _ => Ok(()),
    }
}
