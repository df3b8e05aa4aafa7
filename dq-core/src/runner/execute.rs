//! Executes one handler with middleware, tracing span and events.

use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::events::Event;
use super::shared::{RunnerShared, ServedQueue};
use super::verdict;
use crate::backend::{LeasedJob, Verdict};
use crate::handler::{JobContext, JobResult, Next, Outcome, RunContext};
use crate::model::Timestamp;
use crate::trace::{self, TraceContext};

/// Runs the handler with all middleware and returns the verdict for the store; does not run the
/// handler if the job has lost too many leases. `started` is by the store's clock.
pub(super) async fn execute(
    runner: &RunnerShared,
    served: &ServedQueue,
    leased: LeasedJob,
    started: Timestamp,
    cancelled: CancellationToken,
) -> Verdict {
    if let Some(verdict) = verdict::before_run(&leased.job, &served.policy) {
        return verdict;
    }
    let max_attempts = leased.job.max_attempts.unwrap_or(served.policy.max_attempts);
    let job = JobContext::new(
        leased,
        RunContext {
            state: runner.state.clone(),
            cancelled,
            clock: runner.clock().clone(),
            started,
            max_attempts,
            worker: runner.name.clone(),
        },
    );
    let trace = TraceContext::from_headers(job.headers());
    let span = span(&job, trace);
    let run = async {
        runner.observers.notify(&Event::Started(&job));
        let next = Next::new(&runner.middleware, &served.handler, served.policy.timeout);
        let result = trace::with_context(trace, next.run(job.clone())).await;
        let verdict = verdict::after_run(
            &job,
            &result,
            &served.policy,
            &runner.limits,
            started,
            &runner.environment.entropy,
        );
        log(&result, &verdict);
        runner.observers.notify(&Event::Finished { job: &job, result: &result, verdict: &verdict });
        verdict
    };
    run.instrument(span).await
}

/// The span of one run: a root span, with the trace context of the producer in `trace_id` and
/// `parent_id`.
fn span(job: &JobContext, trace: Option<TraceContext>) -> tracing::Span {
    let span = tracing::info_span!(
        parent: None,
        "job",
        queue = %job.queue(),
        id = %job.id(),
        attempt = job.attempt(),
        lateness_ms = u64::try_from(job.lateness().as_millis()).unwrap_or(u64::MAX),
        trace_id = tracing::field::Empty,
        parent_id = tracing::field::Empty,
    );
    if let Some(trace) = trace.filter(|_| !span.is_disabled()) {
        span.record("trace_id", format_args!("{:032x}", trace.trace_id));
        span.record("parent_id", format_args!("{:016x}", trace.parent_id));
    }
    span
}

/// Logs the result of a run in its span.
fn log(result: &JobResult, verdict: &Verdict) {
    match (result, verdict) {
        (_, Verdict::Dead { reason, .. }) => tracing::error!(%reason, "dead"),
        (Err(error), Verdict::Retry(_)) => tracing::warn!(%error, "failed; will be retried"),
        (Ok(Outcome::Skip(reason)), _) => tracing::debug!(%reason, "skipped"),
        (Ok(Outcome::Snooze(_)), _) => tracing::debug!("snoozed"),
        _ => tracing::debug!("done"),
    }
}
