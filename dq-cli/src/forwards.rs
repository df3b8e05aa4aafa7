//! The runner in `dq serve`, which forwards configured queues to other systems and starts schedule
//! jobs; the metrics of it and of workers.

use std::convert::Infallible;
use std::time::Duration;

use dq_core::{Dq, QueueName, Runner};
use dq_metrics::{BUCKETS, RunnerMetrics};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::failure::{Failure, Result};

/// How often the recorder folds new values into its histograms. Without this, values pile up until
/// somebody reads the metrics.
const UPKEEP: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct Forwards<'a> {
    pub(crate) queues: Vec<&'a QueueName>,
    /// `None` without such queues. Then this process starts no schedule jobs either.
    pub(crate) runner: Option<Runner>,
}

/// The metrics of this process.
pub(crate) struct Metrics(PrometheusHandle);

impl<'a> Forwards<'a> {
    pub(crate) fn new(dq: &'a Dq) -> Result<Self> {
        let queues: Vec<_> = dq.forwarded_queues().collect();
        if queues.is_empty() {
            return Ok(Self::default());
        }
        // The server runs the ingress itself, also for queues it does not forward.
        let runner = dq.runner().without_linked_handlers().without_ingress().only(&queues);
        let runner = runner.observer(RunnerMetrics::new()).build().map_err(|error| {
            let remedy = error.remedy_text().unwrap_or_default();
            let remedy =
                format!("{remedy}; or let another program forward: `forward = false` in [serve]");
            Failure::new("config", error.to_string(), &remedy)
        })?;
        Ok(Self { queues, runner: Some(runner) })
    }
}

impl Metrics {
    /// Records the metrics of this process from now on.
    pub(crate) fn record() -> Result<Self> {
        let internal = |error| Failure::new("internal", format!("metrics: {error}"), "");
        let recorder = PrometheusBuilder::new().set_buckets(BUCKETS).map_err(internal)?;
        Ok(Self(recorder.install_recorder().map_err(internal)?))
    }

    /// Returns the metrics in the Prometheus format.
    pub(crate) fn text(&self) -> impl Fn() -> String + Send + Sync + use<> {
        let metrics = self.0.clone();
        move || metrics.render()
    }

    pub(crate) async fn keep_up(&self) -> Infallible {
        let mut interval = tokio::time::interval(UPKEEP);
        loop {
            interval.tick().await;
            self.0.run_upkeep();
        }
    }
}
