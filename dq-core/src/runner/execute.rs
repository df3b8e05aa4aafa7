//! One run of one handler.

use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Event, Machine, Served, judge};
use crate::backend::{LeasedJob, Verdict};
use crate::handler::{JobContext, JobResult, Next, Outcome, RunContext};
use crate::model::Timestamp;
use crate::trace::{self, TraceContext};

/// Runs the handler, with all middleware, and says what the store is to be told. `started` is by
/// the store's clock.
pub(super) async fn execute(
    machine: &Machine,
    served: &Served,
    leased: LeasedJob,
    started: Timestamp,
    cancelled: CancellationToken,
) -> Verdict {
    if let Some(verdict) = judge::before(&leased.job, &served.policy) {
        return verdict;
    }
    let max_attempts = leased.job.max_attempts.unwrap_or(served.policy.max_attempts);
    let job = JobContext::new(
        leased,
        RunContext {
            state: machine.state.clone(),
            cancelled,
            clock: machine.clock().clone(),
            started,
            max_attempts,
            worker: machine.name.clone(),
        },
    );
    let trace = TraceContext::from_headers(job.headers());
    let span = span(&job, trace);
    let run = async {
        machine.observers.tell(&Event::Started(&job));
        let next = Next::new(&machine.middleware, &served.handler, served.policy.timeout);
        let result = trace::within(trace, next.run(job.clone())).await;
        let verdict = judge::after(
            &job,
            &result,
            &served.policy,
            &machine.limits,
            started,
            &machine.environment.entropy,
        );
        log(&result, &verdict);
        machine.observers.tell(&Event::Finished { job: &job, result: &result, verdict: &verdict });
        verdict
    };
    run.instrument(span).await
}

/// The span of one run. It is a root span: the handler has no parent in this process but the
/// runner's loop; the trace of whoever scheduled the job is in `trace_id` and `parent_id`.
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

fn log(result: &JobResult, verdict: &Verdict) {
    match (result, verdict) {
        (_, Verdict::Dead { reason, .. }) => tracing::error!(%reason, "dead"),
        (Err(error), Verdict::Retry(_)) => tracing::warn!(%error, "failed; will be tried again"),
        (Ok(Outcome::Skip(reason)), _) => tracing::debug!(%reason, "skipped"),
        (Ok(Outcome::Snooze(_)), _) => tracing::debug!("snoozed"),
        _ => tracing::debug!("done"),
    }
}
