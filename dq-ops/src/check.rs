//! What an operator should change in the store's settings.

use std::time::Duration;

use dq_core::{
    Error, ErrorKind, Finding, LatenessCause, LatenessFacts, LatenessStatus, QueueName,
    RecurringView, Severity,
};
use serde::{Deserialize, Serialize};

use crate::error::{OpsError, Result};
use crate::ops::Session;
use crate::overview::Observed;

/// A schedule that is this much overdue has no runner: a runner looks at it within a second.
const UNSERVED_AFTER: Duration = Duration::from_secs(120);

/// Maximum number of queues or schedules that a finding names.
const MAX_NAMES: usize = 5;

/// A problem of the store, and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct FindingView {
    /// How serious it is: `info`, `warning` or `error`.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::Severity))]
    pub severity: String,
    /// A stable code, such as `sqlite.wal-reset-bug`.
    pub code: String,
    /// What is wrong.
    pub cause: String,
    /// How to fix it.
    pub remedy: String,
}

impl From<Finding> for FindingView {
    fn from(finding: Finding) -> Self {
        let severity = match finding.severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            // A kind of a later version is taken seriously.
            _ => "error",
        };
        Self {
            severity: severity.to_owned(),
            code: finding.code.to_owned(),
            cause: finding.cause,
            remedy: finding.remedy,
        }
    }
}

impl Session {
    /// The problems of the main store, the queues that miss their lateness objective or have due jobs
    /// and no runner, and the schedules that cannot be read, repeat within a second, or have no runner.
    pub async fn check(&self) -> Vec<FindingView> {
        let dq = self.ops.dq();
        let mut findings: Vec<_> = dq.check().await.into_iter().map(FindingView::from).collect();
        // Also if the main store has such a finding: these read drained stores, too.
        let failed = |code: &str, what: &str, error: &OpsError| FindingView {
            severity: "error".to_owned(),
            code: code.to_owned(),
            cause: format!("the {what} could not be checked: {error}"),
            remedy: error
                .remedy()
                .unwrap_or_else(|| "repeat the check when the store can be reached".to_owned()),
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
        // An error of the store is a finding already.
        if let (Ok(observed), Ok(schedules)) = (observed, dq.recurring_schedules().await) {
            findings.extend(missed_schedules(&observed, &schedules));
            findings.extend(rapid_schedules(&schedules));
        }
        findings
    }

    /// The findings of queues whose jobs wait: those that miss their objective, and the others that no
    /// runner serves.
    async fn waiting_queues(&self, observed: &Observed) -> Result<Vec<FindingView>> {
        let Observed { stats, runners, now } = observed;
        let statuses = self.ops.dq().lateness_in(stats, runners.as_deref(), *now).await?;
        let mut findings: Vec<_> = statuses.iter().filter_map(missed_objective).collect();
        let is_told = |queue: &QueueName| {
            let told = |status: &LatenessStatus| {
                status.is_missed() && status.cause == Some(LatenessCause::NoRunner)
            };
            statuses.iter().any(|status| status.queue == *queue && told(status))
        };
        let has_no_runner = |queue: &QueueName| {
            let facts = LatenessFacts::announced(queue, runners.as_deref().unwrap_or_default());
            runners.is_some() && facts.runners == Some(0) && !facts.incomplete
        };
        let waiting = stats.iter().filter(|stats| stats.ready > 0 && !stats.paused);
        let unserved: Vec<_> = waiting
            .filter(|stats| !stats.queue.is_reserved())
            .filter(|stats| has_no_runner(&stats.queue) && !is_told(&stats.queue))
            .map(|stats| format!("{} ({})", stats.queue, stats.ready))
            .collect();
        if !unserved.is_empty() {
            findings.push(FindingView {
                severity: "warning".to_owned(),
                code: "queues.no-runner".to_owned(),
                cause: format!("no runner serves queues with due jobs: {}", list(&unserved)),
                remedy:
                    "start a program whose runner handles them; `dq serve` runs the jobs of queues \
                         with a forward only. If a name was misspelt, schedule the jobs again under the right one, and cancel these"
                        .to_owned(),
            });
        }
        Ok(findings)
    }
}

/// The first of these names, and how many more there are.
fn list(names: &[String]) -> String {
    let shown = names[..names.len().min(MAX_NAMES)].join(", ");
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The finding of schedules that no runner looks at: there is no runner, or they are overdue.
fn missed_schedules(observed: &Observed, schedules: &[RecurringView]) -> Option<FindingView> {
    let has_no_runner = observed.runners.as_ref().is_some_and(Vec::is_empty);
    let is_missed = |it: &&RecurringView| {
        let is_overdue = observed.now.since(it.next_due) > UNSERVED_AFTER;
        !it.paused && !it.stopped && (has_no_runner || is_overdue)
    };
    let missed: Vec<_> = schedules.iter().filter(is_missed).map(|it| it.name.clone()).collect();
    if missed.is_empty() {
        return None;
    }
    Some(FindingView {
        severity: "warning".to_owned(),
        code: "schedules.no-runner".to_owned(),
        cause: format!("no runner starts the jobs of schedules: {}", list(&missed)),
        remedy: "start a program with a runner, or `dq serve` with a forwarded queue; what is \
                 missed is caught up on as each schedule says"
            .to_owned(),
    })
}

/// The finding of schedules whose interval is too short.
fn rapid_schedules(schedules: &[RecurringView]) -> Option<FindingView> {
    let rapid = schedules.iter().filter(|it| it.spec.is_rapid());
    let rapid: Vec<_> = rapid.map(|it| format!("{} ({})", it.name, it.spec.recurrence)).collect();
    if rapid.is_empty() {
        return None;
    }
    Some(FindingView {
        severity: "warning".to_owned(),
        code: "schedules.rapid".to_owned(),
        cause: format!("schedules repeat within a second: {}", list(&rapid)),
        remedy:
            "choose intervals of at least 1s: each occurrence costs several calls of the store. \
                 For more, let one job do the work of many"
                .to_owned(),
    })
}

fn unreadable_schedule(error: &Error) -> FindingView {
    // Processes of the version that has written it start its jobs.
    let is_newer = error.kind() == ErrorKind::Incompatible;
    let (severity, what) = if is_newer {
        ("warning", "a schedule starts no jobs of processes of this version")
    } else {
        ("error", "a schedule starts no jobs")
    };
    FindingView {
        severity: severity.to_owned(),
        code: "schedules.unreadable".to_owned(),
        cause: format!("{what}: {}", error.message()),
        remedy: error.remedy_text().unwrap_or_default().to_owned(),
    }
}

/// The finding of a missed objective; `None` if it is met.
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
    Some(FindingView {
        severity: "warning".to_owned(),
        code: "lateness.objective".to_owned(),
        cause: format!("jobs of queue {queue} are late: {cause}; {status}"),
        remedy: remedy.to_owned(),
    })
}
