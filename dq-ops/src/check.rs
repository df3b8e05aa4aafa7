//! What an operator should change in the store's settings.

use std::time::Duration;

use dq_core::{Error, ErrorKind, Finding, LatenessStatus, RecurringView, Severity};
use serde::{Deserialize, Serialize};

use crate::ops::Session;

/// A schedule that is this much overdue has no runner: a runner looks at it within a second.
const UNSERVED_AFTER: Duration = Duration::from_secs(120);

/// A problem of the store, and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct FindingView {
    /// How serious it is: `info`, `warning` or `error`.
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
    /// The problems of the main store, the queues that miss their lateness objective, and the
    /// schedules that cannot be read or that no runner serves.
    pub async fn check(&self) -> Vec<FindingView> {
        let dq = self.ops.dq();
        let mut findings: Vec<_> = dq.check().await.into_iter().map(FindingView::from).collect();
        // Also if the main store has such a finding: these read drained stores, too.
        let failed = |code: &str, what: &str, error: &Error| FindingView {
            severity: "error".to_owned(),
            code: code.to_owned(),
            cause: format!("the {what} could not be checked: {error}"),
            remedy: error
                .remedy_text()
                .unwrap_or("repeat the check when the store can be reached")
                .to_owned(),
        };
        match dq.lateness().await {
            Ok(statuses) => findings.extend(statuses.iter().filter_map(missed_objective)),
            Err(error) => findings.push(failed("lateness.unknown", "lateness objectives", &error)),
        }
        match dq.unreadable_schedules().await {
            Ok(schedules) => findings.extend(schedules.values().map(unreadable_schedule)),
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(error) => findings.push(failed("schedules.unknown", "schedules", &error)),
        }
        findings.extend(self.missed_schedules().await);
        findings
    }

    /// The finding of schedules that no runner looks at. An error of the store is a finding already.
    async fn missed_schedules(&self) -> Option<FindingView> {
        let (now, schedules) =
            (self.now().await.ok()?, self.ops.dq().recurring_schedules().await.ok()?);
        let is_missed = |it: &&RecurringView| {
            !it.paused && !it.stopped && now.since(it.next_due) > UNSERVED_AFTER
        };
        let missed: Vec<_> =
            schedules.iter().filter(is_missed).map(|it| it.name.as_str()).collect();
        let first = missed.first()?;
        Some(FindingView {
            severity: "warning".to_owned(),
            code: "schedules.no-runner".to_owned(),
            cause: format!(
                "no runner starts the jobs of schedules that are due, {} in all, such as {first:?}",
                missed.len()
            ),
            remedy: "start a program with a runner, or `dq serve` with a forwarded queue; what is \
                     missed is caught up on as each schedule says"
                .to_owned(),
        })
    }
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
