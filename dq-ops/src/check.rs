//! Findings about the store, its queues and its schedules.

use std::time::Duration;

use dq_core::{
    Error, ErrorKind, Finding, LatenessCause, LatenessFacts, LatenessStatus, QueueName,
    ScheduleView, Severity,
};
use serde::{Deserialize, Serialize};

use crate::error::{OpsError, Result};
use crate::openapi;
use crate::ops::Session;
use crate::overview::Observed;

/// A schedule that is overdue for this long has no runner, which would look at it within a second.
const UNSERVED_AFTER: Duration = Duration::from_secs(120);

const MAX_NAMES: usize = 5;

/// A problem and its fix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct FindingView {
    /// The severity: `info`, `warning` or `error`.
    #[schema(value_type = openapi::Severity)]
    pub severity: String,
    /// A stable code, such as `sqlite.wal-reset-bug`.
    pub code: String,
    /// The cause.
    pub cause: String,
    /// How to fix it.
    pub remedy: String,
}

impl From<Finding> for FindingView {
    fn from(finding: Finding) -> Self {
        let severity = match finding.severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            // A severity from a later version counts as an error.
            _ => "error",
        };
        Self::new(severity, finding.code, finding.cause, finding.remedy)
    }
}

impl FindingView {
    fn new(severity: &str, code: &str, cause: String, remedy: impl Into<String>) -> Self {
        let (severity, code) = (severity.to_owned(), code.to_owned());
        Self { severity, code, cause, remedy: remedy.into() }
    }

    fn warning(code: &str, cause: String, remedy: &str) -> Self {
        Self::new("warning", code, cause, remedy)
    }
}

impl Session {
    /// Checks the main store, its queues and its schedules.
    ///
    /// Reports store problems, queues that miss their lateness objective or have due jobs but no
    /// runner, and schedules that are unreadable, repeat within a second or have no runner.
    pub async fn check(&self) -> Vec<FindingView> {
        let dq = self.ops.dq();
        let mut findings: Vec<_> = dq.check().await.into_iter().map(FindingView::from).collect();
        // Reported beside the main store's own finding: these checks also read drained stores.
        let failed = |code: &str, what: &str, error: &OpsError| {
            let cause = format!("the {what} could not be checked: {error}");
            let again = || "repeat the check when the store can be reached".to_owned();
            FindingView::new("error", code, cause, error.remedy().unwrap_or_else(again))
        };
        let observed = self.observed().await;
        match &observed {
            Ok(observed) => match self.waiting_queues(observed).await {
                Ok(found) => findings.extend(found),
                Err(error) => {
                    findings.push(failed("lateness.unknown", "lateness objectives", &error));
                }
            },
            Err(error) => findings.push(failed("queues.unknown", "queues", error)),
        }
        match dq.unreadable_schedules().await {
            Ok(schedules) => findings.extend(schedules.values().map(unreadable_schedule)),
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(error) => findings.push(failed("schedules.unknown", "schedules", &error.into())),
        }
        // The schedule listing's error is already a finding.
        if let (Ok(observed), Ok(schedules)) = (observed, dq.schedules().await) {
            findings.extend(missed_schedules(&observed, &schedules));
            findings.extend(rapid_schedules(&schedules));
        }
        findings
    }

    /// Queues that miss their objective, and other queues with due jobs and no runner.
    async fn waiting_queues(&self, observed: &Observed) -> Result<Vec<FindingView>> {
        let Observed { stats, runners, now } = observed;
        let statuses = self.ops.dq().lateness_in(stats, runners.as_deref(), *now).await?;
        let mut findings: Vec<_> = statuses.iter().filter_map(missed_objective).collect();
        let is_found_already = |queue: &QueueName| {
            statuses.iter().any(|status| {
                let has_no_runner = status.cause == Some(LatenessCause::NoRunner);
                status.queue == *queue && status.is_missed() && has_no_runner
            })
        };
        let has_no_runner = |queue: &QueueName| {
            let facts = LatenessFacts::announced(queue, runners.as_deref().unwrap_or_default());
            runners.is_some() && facts.runners == Some(0) && !facts.incomplete
        };
        let waiting = stats.iter().filter(|stats| stats.ready > 0 && !stats.paused);
        let unserved: Vec<_> = waiting
            .filter(|stats| !stats.queue.is_reserved())
            .filter(|stats| has_no_runner(&stats.queue) && !is_found_already(&stats.queue))
            .map(|stats| format!("{} ({})", stats.queue, stats.ready))
            .collect();
        if !unserved.is_empty() {
            findings.push(FindingView::warning(
                "queues.no-runner",
                format!("no runner serves queues with due jobs: {}", list(&unserved)),
                "start a program whose runner handles them; `dq serve` runs the jobs of queues \
                 with a forward only. If a name was misspelt, schedule the jobs again under the \
                 right one, and cancel these",
            ));
        }
        Ok(findings)
    }
}

fn list(names: &[String]) -> String {
    let shown = names[..names.len().min(MAX_NAMES)].join(", ");
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn missed_schedules(observed: &Observed, schedules: &[ScheduleView]) -> Option<FindingView> {
    let has_no_runner = observed.runners.as_ref().is_some_and(Vec::is_empty);
    let is_missed = |it: &&ScheduleView| {
        let is_overdue = observed.now.since(it.next_due) > UNSERVED_AFTER;
        !it.paused && !it.stopped && (has_no_runner || is_overdue)
    };
    let missed: Vec<_> = schedules.iter().filter(is_missed).map(|it| it.name.clone()).collect();
    if missed.is_empty() {
        return None;
    }
    Some(FindingView::warning(
        "schedules.no-runner",
        format!("no runner starts the jobs of schedules: {}", list(&missed)),
        "start a program with a runner, or `dq serve` with a forwarded queue; what is \
         missed is caught up on as each schedule says",
    ))
}

/// Schedules with occurrences less than a second apart.
fn rapid_schedules(schedules: &[ScheduleView]) -> Option<FindingView> {
    let rapid = schedules.iter().filter(|it| it.spec.is_rapid());
    let rapid: Vec<_> = rapid.map(|it| format!("{} ({})", it.name, it.spec.times)).collect();
    if rapid.is_empty() {
        return None;
    }
    Some(FindingView::warning(
        "schedules.rapid",
        format!("schedules repeat within a second: {}", list(&rapid)),
        "choose intervals of at least 1s: each occurrence costs several calls of the store. \
         For more, let one job do the work of many",
    ))
}

fn unreadable_schedule(error: &Error) -> FindingView {
    // The version that wrote the schedule still starts its jobs.
    let is_newer = error.kind() == ErrorKind::Incompatible;
    let (severity, what) = if is_newer {
        ("warning", "a schedule starts no jobs of processes of this version")
    } else {
        ("error", "a schedule starts no jobs")
    };
    FindingView::new(
        severity,
        "schedules.unreadable",
        format!("{what}: {}", error.message()),
        error.remedy_text().unwrap_or_default().to_owned(),
    )
}

fn missed_objective(status: &LatenessStatus) -> Option<FindingView> {
    if !status.is_missed() {
        return None;
    }
    let queue = &status.queue;
    let (cause, remedy) = match status.cause {
        Some(cause) => (cause.to_string(), cause.remedy()),
        None => (
            "the cause was not observed".to_owned(),
            "look at the logs and metrics of the runners for the last hour",
        ),
    };
    Some(FindingView::warning(
        "lateness.objective",
        format!("jobs of queue {queue} are late: {cause}; {status}"),
        remedy,
    ))
}
