//! Executes one handler with middleware, tracing span and events.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::before::before_run;
use super::events::Event;
use super::shared::{RunnerShared, ServedQueue};
use super::store::{Before, RunSignals, Start, StoreContext};
use crate::backend::{LeasedJob, Verdict};
use crate::handler::{JobContext, JobError, JobResult, Next, Outcome, RunContext, Timeout, panics};
use crate::model::format_exact_duration;
use crate::trace::{self, TraceContext};

/// Time after the timeout in which middleware may still return, so that it can see the timeout.
const MIDDLEWARE_PATIENCE: Duration = Duration::from_secs(5);

/// The same after a blocking handler that a shutdown has waited for. Short, because the shutdown
/// waits a few seconds for both.
const FINAL_PATIENCE: Duration = Duration::from_secs(1);

enum RunEnd {
    Returned(JobResult),
    /// The grace period of a shutdown ended.
    Aborted,
    Superseded,
}

/// Runs the handler with its middleware, unless the job must not run now. Returns the verdict, or
/// `None` if the lease is lost.
///
/// On return, neither the handler nor its thread still runs.
pub(super) async fn execute(
    context: &StoreContext,
    served: &ServedQueue,
    leased: LeasedJob,
    start: Start,
    signals: RunSignals,
) -> Option<Verdict> {
    let runner = &context.runner;
    let rules = context.verdict_rules(served);
    if let Before::Ends(verdict) = before_run(context, &rules, &leased.job, start, &signals).await {
        return verdict;
    }
    let job = job_context(context, served, leased, start, &signals);
    let trace = TraceContext::from_headers(job.headers());
    let span = span(&job, trace);
    let run = async {
        runner.observers.notify(&Event::Started(&job));
        let started_at = runner.clock().elapsed();
        let run = run_until_stopped(runner, served, &job, &signals.superseded);
        let result = match trace::with_context(trace, run).await {
            RunEnd::Returned(result) => result,
            RunEnd::Aborted => return Some(Verdict::Release { started: true }),
            RunEnd::Superseded => return None,
        };
        let ended_at = runner.clock().elapsed();
        served.recent.record(job.lateness(), started_at, ended_at);
        let (result, error) = panics::display_error(result);
        let verdict = rules.after_run(job.job(), &result, &error, start.started);
        if matches!(verdict, Verdict::Retry { .. } | Verdict::Dead { .. }) {
            served.recent.record_failure();
        }
        log(&result, &verdict);
        let duration = ended_at.saturating_sub(started_at);
        let finished = Event::Finished { job: &job, result: &result, verdict: &verdict, duration };
        runner.observers.notify(&finished);
        if let Verdict::Dead { reason, .. } = &verdict {
            runner.observers.notify(&Event::Dead { job: job.job(), reason });
        }
        panics::drop_caught(result);
        Some(verdict)
    };
    run.instrument(span).await
}

fn job_context(
    context: &StoreContext,
    served: &ServedQueue,
    leased: LeasedJob,
    start: Start,
    signals: &RunSignals,
) -> JobContext {
    let runner = &context.runner;
    let max_attempts = leased.job.max_attempts.unwrap_or(served.policy.max_attempts);
    let run = RunContext {
        state: runner.state.clone(),
        cancelled: signals.cancelled.clone(),
        clock: runner.clock().clone(),
        started: start.started,
        max_attempts,
        steps: u32::try_from(served.handler.escalation.steps.len()).unwrap_or(u32::MAX),
        worker: runner.name.clone(),
        store: Some(context.store.clone()),
        may_end_job: Arc::clone(&signals.may_end_job),
    };
    JobContext::new(leased, run)
}

/// Runs middleware and handler until they return or the runner stops them.
///
/// Never ends before a blocking handler's thread, which cannot be stopped: the job could start
/// again beside it.
async fn run_until_stopped(
    runner: &RunnerShared,
    served: &ServedQueue,
    job: &JobContext,
    superseded: &CancellationToken,
) -> RunEnd {
    let mut run = Box::pin(panics::catch_run(run_with_timeout(runner, served, job)));
    let stopped = tokio::select! {
        biased;
        result = &mut run => return RunEnd::Returned(result),
        () = superseded.cancelled() => RunEnd::Superseded,
        () = runner.abort.cancelled() => RunEnd::Aborted,
    };
    job.cancellation().cancel();
    if !job.thread().is_busy_or_forbid() {
        panics::drop_caught(run);
        return stopped;
    }
    if let RunEnd::Aborted = stopped {
        tracing::warn!(
            "a blocking handler still runs after the grace period; \
             its job is not released before it returns"
        );
        runner.observers.notify(&Event::GraceExceeded(job));
    } else {
        tracing::warn!(
            "a blocking handler still runs without its lease; \
             its job does not start again before it returns"
        );
    }
    // Nobody needs the result of a superseded run.
    let patience = match stopped {
        RunEnd::Aborted => FINAL_PATIENCE,
        _ => Duration::ZERO,
    };
    let result = tokio::select! {
        biased;
        result = &mut run => result,
        () = middleware_ended(job, patience) => {
            panics::drop_caught(run);
            return stopped;
        }
    };
    let (result, error) = panics::display_error(result);
    match (&stopped, &result) {
        (RunEnd::Aborted, Ok(_)) => return RunEnd::Returned(result),
        // The handler probably failed because it was told to stop; this must not cost an attempt.
        (RunEnd::Aborted, Err(_)) => tracing::info!(error, "interrupted by the shutdown"),
        _ => {}
    }
    panics::drop_caught(result);
    stopped
}

async fn run_with_timeout(
    runner: &RunnerShared,
    served: &ServedQueue,
    job: &JobContext,
) -> JobResult {
    let timeout = Timeout { after: served.policy.timeout, passed: CancellationToken::new() };
    // Application middleware could end a schedule for good by its outcome.
    let middleware = if served.queue.is_reserved() { &[][..] } else { &runner.middleware };
    let next = Next::new(middleware, &served.handler, &timeout);
    let mut run = pin!(next.run(job.clone()));
    let result = tokio::select! {
        // If run and timeout end at the same moment, the run's result counts.
        biased;
        result = &mut run => result,
        () = sleep_unless_max(job, timeout.after) => {
            job.cancellation().cancel();
            timeout.passed.cancel();
            if job.thread().is_busy_or_forbid() {
                tracing::warn!(timeout = %format_exact_duration(timeout.after),
                    "a blocking handler exceeds its timeout and cannot be stopped; does it check \
                     `ctx.is_cancelled()`?");
                runner.observers.notify(&Event::TimeoutExceeded(job));
            }
            tokio::select! {
                biased;
                result = &mut run => result,
                () = middleware_ended(job, MIDDLEWARE_PATIENCE) => Err(JobError::TimedOut(timeout.after)),
            }
        }
    };
    if job.thread().is_busy_or_forbid() {
        tracing::warn!("middleware returned before the blocking handler; waiting for its thread");
        job.cancellation().cancel();
        job.thread().ended().await;
    }
    result
}

/// Waits for a blocking handler's thread, and then as long as middleware may take after it.
async fn middleware_ended(job: &JobContext, patience: Duration) {
    job.thread().ended().await;
    job.sleep(patience).await;
}

async fn sleep_unless_max(job: &JobContext, delay: Duration) {
    if delay == Duration::MAX {
        return std::future::pending().await;
    }
    job.sleep(delay).await;
}

/// A root span; `trace_id` and `parent_id` carry the producer's trace context.
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
        (_, Verdict::Retry { error, .. }) => tracing::warn!(error, "failed; will be retried"),
        (Ok(Outcome::Skip(reason)), _) => tracing::debug!(%reason, "skipped"),
        (Ok(Outcome::Snooze(_)), _) => tracing::debug!("snoozed"),
        (Ok(Outcome::Throttle(due)), _) => tracing::warn!(?due, "the handler throttled its queue"),
        (Ok(Outcome::Again(..) | Outcome::NextStep(..)), _) => tracing::debug!("next step"),
        _ => tracing::debug!("done"),
    }
}
