//! `dq runners` and `check`.

use dq_ops::RunnerSummary;

use crate::failure::{FAILED, Failure, Result};
use crate::output::Output;
use crate::source::Source;
use crate::text::{self, Table};

pub(super) fn list(source: &Source, output: &mut Output<'_>) -> Result<()> {
    let runners = source.runners()?;
    if output.is_json() {
        return runners.iter().try_for_each(|runner| output.json(runner));
    }
    if runners.is_empty() {
        output.note("no runner listens");
        return Ok(());
    }
    let mut table =
        Table::new(&["RUNNER", "HOST", ">PID", "VERSION", ">RUNNING", "STATE", "QUEUES"]);
    output.text(&table.rows(&runners.iter().map(row).collect::<Vec<_>>()))
}

fn row(runner: &RunnerSummary) -> Vec<String> {
    let name = text::clean(&runner.name);
    if let Some(unreadable) = &runner.unreadable {
        let mut row = vec![name];
        row.resize(5, String::new());
        row.extend(["unreadable".to_owned(), text::line(unreadable, 80)]);
        return row;
    }
    let queues = runner.queues.iter().map(|served| {
        let queue = text::clean(served.queue.as_str());
        format!("{queue} {}/{}", served.running, served.concurrency)
    });
    let mut queues = queues.collect::<Vec<_>>().join(", ");
    if runner.omitted_queues > 0 {
        queues += &format!(" and {} more", runner.omitted_queues);
    }
    for worker in &runner.workers {
        queues += &format!("; {} {}", text::clean(&worker.name), worker.running);
    }
    vec![
        name,
        text::clean(&runner.host),
        runner.pid.to_string(),
        text::clean(&runner.version),
        format!("{}/{}", runner.running, runner.concurrency),
        if runner.stopping { "stopping" } else { "listening" }.to_owned(),
        queues,
    ]
}

pub(super) fn check(source: &Source, output: &mut Output<'_>) -> Result<()> {
    let findings = source.check()?;
    for finding in &findings {
        output.either(finding, || {
            format!(
                "{:<8} {}\n  cause   {}\n  remedy  {}\n",
                finding.severity,
                finding.code,
                text::clean(&finding.cause),
                text::clean(&finding.remedy)
            )
        })?;
    }
    if findings.is_empty() && !output.is_json() {
        output.text("no problem found\n")?;
    }
    match findings.iter().any(|finding| finding.severity == "error") {
        true => Err(Failure::Reported(FAILED)),
        false => Ok(()),
    }
}
