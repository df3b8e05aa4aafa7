//! `dq jobs ls`, `get` and `find`.

use std::collections::BTreeSet;

use dq_core::{JobId, JobState, QueueName, Target};
use dq_ops::{JobDetail, JobQuery, JobSummary, PayloadView};

use crate::args::{FindArgs, JobArgs, ListArgs};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::source::Source;
use crate::text::{self, Table};

/// States of a listing by default: active jobs first.
const NOT_ENDED: [JobState; 4] =
    [JobState::Running, JobState::Ready, JobState::Scheduled, JobState::Dead];

const ALL_STATES: [JobState; 5] =
    [JobState::Running, JobState::Ready, JobState::Scheduled, JobState::Dead, JobState::Ended];

/// Maximum note length in a table, in characters.
const MAX_NOTE_CHARS: usize = 60;

/// Rows buffered per print, so that their columns line up.
const MAX_ROWS: usize = 500;

struct Listing<'a, 'b> {
    output: &'a mut Output<'b>,
    table: Table,
    rows: Vec<Vec<String>>,
    listed: usize,
    limit: usize,
}

impl<'a, 'b> Listing<'a, 'b> {
    fn new(output: &'a mut Output<'b>, limit: usize) -> Self {
        let table = Table::new(&["QUEUE", "STATE", "ID", "KEY", "DUE", ">ATTEMPTS", "NOTE"]);
        Self { output, table, rows: Vec::new(), listed: 0, limit }
    }

    /// Prints jobs up to the limit: JSON at once, a table by [`MAX_ROWS`]. Flushes, so that the
    /// command ends when its reader does, such as `head`.
    fn print(&mut self, jobs: &[JobSummary]) -> Result<()> {
        let jobs = &jobs[..jobs.len().min(self.remaining())];
        self.listed += jobs.len();
        if self.output.is_json() {
            jobs.iter().try_for_each(|job| self.output.json(job))?;
            return self.output.flush();
        }
        self.rows.extend(jobs.iter().map(row));
        if self.rows.len() >= MAX_ROWS { self.print_rows() } else { Ok(()) }
    }

    fn print_rows(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return Ok(());
        }
        self.output.text(&self.table.rows(&rows))?;
        self.output.flush()
    }

    fn remaining(&self) -> usize {
        self.limit - self.listed
    }
}

/// The table row of a job, with a note on its death or end, its runner, or its last error.
fn row(job: &JobSummary) -> Vec<String> {
    let note = match (&job.dead, &job.ended, &job.worker) {
        (Some(dead), ..) => dead.message.clone(),
        (_, Some(ended), _) => match &ended.reason {
            Some(reason) => format!("{}: {reason}", ended.ending.as_str()),
            None => ended.ending.as_str().to_owned(),
        },
        (.., Some(worker)) if job.state == JobState::Running => format!("on {worker}"),
        _ => job.last_error.clone().unwrap_or_default(),
    };
    vec![
        text::clean(job.queue.as_str()),
        job.state.to_string(),
        job.id.to_string(),
        job.key.as_deref().map(text::clean).unwrap_or_default(),
        job.due.to_string(),
        attempts(job),
        text::line(&note, MAX_NOTE_CHARS),
    ]
}

fn attempts(job: &JobSummary) -> String {
    match job.max_attempts {
        Some(max) => format!("{}/{max}", job.attempts),
        None => job.attempts.to_string(),
    }
}

fn queues_of(queue: Option<&QueueName>, source: &Source) -> Result<Vec<QueueName>> {
    match queue {
        // An unknown queue is an error, not an empty listing.
        Some(queue) => Ok(vec![source.queue(queue)?.queue]),
        None => Ok(source.queues()?.into_iter().map(|summary| summary.queue).collect()),
    }
}

pub(super) fn list(args: &ListArgs, source: &Source, output: &mut Output<'_>) -> Result<()> {
    let limit = if args.all { usize::MAX } else { args.limit };
    let states = if args.state.is_empty() { NOT_ENDED.as_slice() } else { &args.state };
    let mut listing = Listing::new(output, limit);
    let mut has_more = false;
    'listing: for queue in queues_of(args.queue.as_ref(), source)? {
        for state in states {
            let mut query = JobQuery::new(*state);
            query.filter = args.filter.filter();
            query.contains.clone_from(&args.contains);
            query.descending = args.desc;
            has_more = pages(&queue, query, source, &mut listing)?;
            if has_more {
                break 'listing;
            }
        }
    }
    listing.print_rows()?;
    let (listed, output) = (listing.listed, listing.output);
    if has_more {
        output.note("there are more jobs: raise --limit, or give --all");
    } else if listed == 0 && !output.is_json() {
        output.note("no job matches");
    }
    Ok(())
}

/// Prints pages up to the limit; returns whether there are more jobs.
fn pages(
    queue: &QueueName,
    mut query: JobQuery,
    source: &Source,
    listing: &mut Listing<'_, '_>,
) -> Result<bool> {
    loop {
        // One extra job tells whether there are more.
        query.limit = listing.remaining().saturating_add(1).min(JobQuery::MAX_LIMIT);
        let page = source.jobs(queue, &query)?;
        let has_more = page.jobs.len() > listing.remaining();
        listing.print(&page.jobs)?;
        query.after = page.next;
        if has_more || query.after.is_none() {
            return Ok(has_more);
        }
    }
}

pub(super) fn find(args: &FindArgs, source: &Source, output: &mut Output<'_>) -> Result<()> {
    let mut listing = Listing::new(output, args.limit);
    let found = find_all(args, source, &mut listing);
    // The jobs found before an error are printed, too.
    listing.print_rows()?;
    let refused = found?;
    let (listed, output) = (listing.listed, listing.output);
    if refused.is_some() {
        output.note("payloads were not searched: that needs the role reader");
    }
    match (listed, refused) {
        (0, Some(refused)) => Err(refused),
        (0, None) => Err(Failure::new(
            "not found",
            format!("{:?} is no id, no beginning of a key and in no payload", args.text),
            "check the spelling; a job that has ended is remembered only if `history` is set",
        )),
        _ => Ok(()),
    }
}

/// Prints the matching jobs; returns the refusal of the payload search, if any.
fn find_all(
    args: &FindArgs,
    source: &Source,
    listing: &mut Listing<'_, '_>,
) -> Result<Option<Failure>> {
    let queues = queues_of(args.queue.as_ref(), source)?;
    let mut printed = BTreeSet::new();
    if let Ok(id) = args.text.parse::<JobId>() {
        for queue in &queues {
            match source.job(queue, &Target::Id(id)) {
                Ok(detail) => {
                    printed.insert((queue.clone(), id));
                    listing.print(&[detail.job])?;
                }
                Err(failure) if failure.is_not_found() => {}
                Err(failure) => return Err(failure),
            }
        }
    }
    let mut refused = None;
    for queue in &queues {
        for state in ALL_STATES {
            let mut by_key = JobQuery::new(state);
            by_key.filter.key_prefix = Some(args.text.clone());
            search(queue, by_key, source, listing, &mut printed)?;
            // Ended jobs have no payload.
            if state == JobState::Ended || refused.is_some() {
                continue;
            }
            let mut by_payload = JobQuery::new(state);
            by_payload.contains = Some(args.text.clone());
            match search(queue, by_payload, source, listing, &mut printed) {
                Err(failure) if failure.is_forbidden() => refused = Some(failure),
                searched => searched?,
            }
        }
    }
    Ok(refused)
}

fn search(
    queue: &QueueName,
    mut query: JobQuery,
    source: &Source,
    listing: &mut Listing<'_, '_>,
    printed: &mut BTreeSet<(QueueName, JobId)>,
) -> Result<()> {
    while listing.remaining() > 0 {
        query.limit = JobQuery::MAX_LIMIT;
        let page = match source.jobs(queue, &query) {
            // Without a history there are no ended jobs.
            Err(failure) if failure.is_unsupported() && query.state == JobState::Ended => {
                return Ok(());
            }
            page => page?,
        };
        let new = page.jobs.into_iter().filter(|job| printed.insert((queue.clone(), job.id)));
        let new: Vec<_> = new.take(listing.remaining()).collect();
        listing.print(&new)?;
        query.after = page.next;
        if query.after.is_none() {
            return Ok(());
        }
    }
    Ok(())
}

pub(super) fn get(args: &JobArgs, source: &Source, output: &mut Output<'_>) -> Result<()> {
    let detail = source.job(&args.queue, &args.job)?;
    output.either(&detail, || describe(&detail))
}

fn describe(detail: &JobDetail) -> String {
    let job = &detail.job;
    let mut text = String::new();
    let mut line = |name: &str, value: String| text += &format!("{name:<9} {value}\n");
    line("id", job.id.to_string());
    line("queue", text::clean(job.queue.as_str()));
    if let Some(key) = &job.key {
        line("key", text::clean(key));
    }
    line("state", job.state.to_string());
    line("due", job.due.to_string());
    line("created", job.created.to_string());
    line("attempts", attempts(job));
    line("claims", job.deliveries.to_string());
    if job.losses > 0 {
        line("losses", job.losses.to_string());
    }
    if let Some(worker) = &job.worker {
        line("worker", text::clean(worker));
    }
    if let Some(until) = job.leased_until {
        line("lease", format!("until {until}"));
    }
    if let (Some(error), Some(attempt)) = (&job.last_error, job.last_error_attempt) {
        line("error", format!("attempt {attempt}, {}", text::clean(error)));
    }
    if let Some(dead) = &job.dead {
        line("dead", format!("{}, {}", dead.at, text::clean(&dead.message)));
    }
    if let Some(ended) = &job.ended {
        let reason = ended.reason.as_deref().map(|reason| format!(", {}", text::clean(reason)));
        line(
            "ended",
            format!("{}, {}{}", ended.at, ended.ending.as_str(), reason.unwrap_or_default()),
        );
    }
    for (name, value) in detail.headers.iter().flatten() {
        line("header", format!("{}: {}", text::clean(name), text::clean(value)));
    }
    match &detail.payload {
        Some(payload) => {
            let cut = if payload.truncated { ", the first 64 KiB" } else { "" };
            let size = text::count(payload.size, "byte");
            line("payload", format!("{}, {size}{cut}", text::clean(&payload.content_type)));
            text += &payload_text(payload);
        }
        None if detail.headers.is_none() => line("payload", "needs the role reader".to_owned()),
        None => {}
    }
    text
}

/// Formats a payload for display, with a final line feed.
pub(super) fn payload_text(payload: &PayloadView) -> String {
    let shown = payload.shown();
    let lines = shown.lines().map(|line| format!("{}\n", text::clean(line)));
    lines.collect()
}
