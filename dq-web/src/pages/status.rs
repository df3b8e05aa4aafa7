//! Runners, the store's problems, and the audit.

use askama::Template;
use axum::extract::State;
use axum::http::header::REFRESH;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use dq_core::Timestamp;
use dq_ops::{AuditEntry, AuditOutcome, FindingView, RunnerSummary};

use crate::app::App;

use super::chrome::{Chrome, PageRequest, problem, render};
use super::format::{When, duration, number};

#[derive(Template)]
#[template(path = "runners.html")]
struct RunnersPage {
    c: Chrome,
    runners: Vec<RunnerRow>,
}

struct RunnerRow {
    name: String,
    place: String,
    version: String,
    stopping: bool,
    unreadable: Option<String>,
    started: Option<When>,
    seen: When,
    running: u64,
    concurrency: u64,
    skew: Option<String>,
    is_skewed: bool,
    queues: Vec<ServedRow>,
    omitted: u64,
}

struct ServedRow {
    name: String,
    href: String,
    slots: String,
    late: String,
    run: String,
}

/// `GET runners`
pub(super) async fn runners(request: PageRequest) -> Response {
    let mut c = request.chrome("runners");
    c.title = c.t.runners.to_owned();
    let (runners, now) = match (request.session.runners().await, request.session.now().await) {
        (Ok(runners), Ok(now)) => (runners, now),
        (Err(error), _) | (_, Err(error)) => return problem(c, error.into(), None),
    };
    let runners = runners.into_iter().map(|runner| runner_row(&c, runner, now)).collect();
    render(StatusCode::OK, &RunnersPage { c, runners })
}

fn runner_row(c: &Chrome, runner: RunnerSummary, now: Timestamp) -> RunnerRow {
    let quantile = |quantiles: Option<dq_ops::Quantiles>| {
        quantiles.map_or_else(|| "–".to_owned(), |quantiles| duration(quantiles.p99_ms, c.lang))
    };
    let queues = runner.queues.iter().map(|queue| ServedRow {
        name: queue.queue.as_str().to_owned(),
        href: c.link("queue", &[("name", queue.queue.as_str())]),
        slots: format!("{} / {}", number(queue.running), number(queue.concurrency)),
        late: quantile(queue.lateness),
        run: quantile(queue.run_time),
    });
    let sign = |skew: i64| if skew < 0 { "−" } else { "+" };
    let skew = runner
        .skew_ms
        .map(|skew| format!("{}{}", sign(skew), duration(skew.unsigned_abs(), c.lang)));
    RunnerRow {
        place: match runner.host.as_str() {
            "" => format!("pid {}", runner.pid),
            host => format!("{host} · pid {}", runner.pid),
        },
        stopping: runner.stopping,
        started: When::some(runner.started, now, c.lang),
        seen: c.when(runner.announced_at, now),
        running: runner.running,
        // A slot chart needs at least one.
        concurrency: runner.concurrency.max(1),
        skew,
        is_skewed: runner.skew_ms.is_some_and(|skew| skew.unsigned_abs() >= 1_000),
        queues: queues.collect(),
        omitted: runner.omitted_queues,
        unreadable: runner.unreadable,
        version: runner.version,
        name: runner.name,
    }
}

#[derive(Template)]
#[template(path = "check.html")]
struct CheckPage {
    c: Chrome,
    /// `None` while the check runs.
    findings: Option<Vec<FindingView>>,
}

/// `GET check`
pub(super) async fn check(State(app): State<App>, request: PageRequest) -> Response {
    let mut c = request.chrome("check");
    c.title = c.t.check.to_owned();
    let findings = app.check_for_page(&request.session).await;
    let is_running = findings.is_none();
    let mut response = render(StatusCode::OK, &CheckPage { c, findings });
    if is_running {
        // In seconds. The header also works without scripts.
        response.headers_mut().insert(REFRESH, HeaderValue::from_static("1"));
    }
    response
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    c: Chrome,
    entries: Vec<AuditRow>,
}

struct AuditRow {
    when: When,
    actor: String,
    role: &'static str,
    action: String,
    queue: String,
    target: Option<String>,
    outcome: String,
    is_failed: bool,
}

/// `GET audit`
pub(super) async fn audit(request: PageRequest) -> Response {
    let mut c = request.chrome("audit");
    c.title = c.t.audit.to_owned();
    let entries = match request.session.audit(100) {
        Ok(entries) => entries,
        Err(error) => return problem(c, error.into(), None),
    };
    // Entries have this process's clock.
    let now = Timestamp::from(std::time::SystemTime::now());
    let entries = entries.into_iter().map(|entry| audit_row(&c, entry, now)).collect();
    render(StatusCode::OK, &AuditPage { c, entries })
}

fn audit_row(c: &Chrome, entry: AuditEntry, now: Timestamp) -> AuditRow {
    let (outcome, is_failed) = match entry.outcome {
        AuditOutcome::Ok { changed } => (number(changed), false),
        AuditOutcome::Failed { error } => (error, true),
        _ => (c.t.interrupted.to_owned(), true),
    };
    AuditRow {
        when: c.when(entry.at, now),
        actor: entry.actor,
        role: entry.role.as_str(),
        action: entry.action,
        queue: entry.queue,
        target: entry.target,
        outcome,
        is_failed,
    }
}
