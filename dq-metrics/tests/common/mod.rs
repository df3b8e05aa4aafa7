//! Runs jobs whose payload names their outcome.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq_core::config::{BackoffSettings, QueueSettings};
use dq_core::{
    DelayHandler, Dq, Event, HandlerResult, JobContext, Outcome, QueueCode, RunnerBuilder,
};
use dq_metrics::RunnerMetrics;
use metrics_exporter_prometheus::PrometheusRecorder;
use tokio_util::sync::CancellationToken;

pub(crate) struct PayloadIsOutcome;

impl DelayHandler for PayloadIsOutcome {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        "OBEDIENT"
    }

    fn settings(&self) -> QueueSettings {
        let backoff = Duration::from_millis(1);
        QueueSettings::new().backoff(BackoffSettings::new().initial(backoff).max(backoff))
    }

    async fn handle(&self, ctx: JobContext, payload: String) -> HandlerResult {
        let is_first = ctx.deliveries() == 1;
        match payload.as_str() {
            "skip" => Ok(Outcome::skip("as asked")),
            "dead" => Ok(Outcome::dead("as asked")),
            "retry" if is_first => Err("as asked".into()),
            "snooze" if is_first => Ok(Outcome::snooze(Duration::ZERO)),
            "throttle" if is_first => Ok(Outcome::throttle(Duration::ZERO)),
            "again" => Ok(Outcome::again(Duration::ZERO, &"done")?),
            _ => Ok(Outcome::Done),
        }
    }
}

/// Returns a runner with metrics, and a token that fires after this many settlements.
pub(crate) fn runner(dq: &Dq, settlements: usize) -> (RunnerBuilder, CancellationToken) {
    let (left, finished) = (AtomicUsize::new(settlements), CancellationToken::new());
    let finish = finished.clone();
    let count = move |event: &Event<'_>| {
        let is_settled = matches!(event, Event::Settled { .. });
        if is_settled && left.fetch_sub(1, Ordering::Relaxed) == 1 {
            finish.cancel();
        }
    };
    let runner = dq.runner().without_linked_handlers().handler(PayloadIsOutcome);
    (runner.observer(RunnerMetrics::new()).observer(count), finished)
}

pub(crate) async fn schedule(dq: &Dq, payloads: &[&str]) {
    dq_core::queue!(OBEDIENT: String);
    let jobs = payloads.iter().map(|payload| dq.schedule::<OBEDIENT>((*payload).to_owned()));
    dq.schedule_many(jobs).await.expect("the jobs are valid");
}

/// Runs a future on this thread, because the recorder is local to it.
pub(crate) fn record<T>(recorder: &PrometheusRecorder, future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(recorder, || runtime.block_on(future))
}
