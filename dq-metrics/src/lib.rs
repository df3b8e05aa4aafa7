//! Runner metrics for `dq`, through the [`metrics`] facade.
//!
//! Add [`RunnerMetrics`] to the runner as an observer, and install any recorder for the facade,
//! such as `metrics-exporter-prometheus`. Give the exporter the bounds in [`BUCKETS`]: without
//! them, most exporters turn histograms into summaries, which you cannot add up over several
//! processes.
//!
//! ```
//! # use dq_core as dq;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> dq::Result<()> {
//! # struct Mailer;
//! # impl dq::DelayHandler for Mailer {
//! #     type Payload = u64;
//! #     fn code(&self) -> impl dq::QueueCode { "SEND_MAIL" }
//! #     async fn handle(&self, _: dq::JobContext, _: u64) -> dq::HandlerResult { Ok(dq::Outcome::Done) }
//! # }
//! use metrics_exporter_prometheus::PrometheusBuilder;
//!
//! let recorder = PrometheusBuilder::new().set_buckets(dq_metrics::BUCKETS).expect("bounds");
//! let exporter = recorder.install_recorder().expect("the only recorder of the process");
//!
//! let dq = dq::Dq::connect("memory:").await?;
//! let runner = dq.runner().handler(Mailer).observer(dq_metrics::RunnerMetrics::new()).build()?;
//! runner.run_due().await?;
//! println!("{}", exporter.render());
//! # Ok(())
//! # }
//! ```
//!
//! | Metric | Type | Labels |
//! |---|---|---|
//! | [`JOBS`] | counter | `queue`, `outcome`: `done`, `skip`, `retry`, `snooze`, `throttle`, `again`, `dead`, `release`, `stale` |
//! | [`LATENESS`] | histogram, seconds | `queue` |
//! | [`RUN`] | histogram, seconds | `queue` |
//! | [`STORE`] | histogram, seconds | `op`: `claim`, `settle`, `renew`, `listen`, `announce`, `check`, `stats`; `runners`, `now`, `forecast` with lateness objectives |
//! | [`SLOTS`] | gauge | `state`: `free`, `busy` |
//! | [`LEASES_LOST`] | counter | `queue` |
//! | [`LATENESS_MISSED`] | gauge | `queue` |
//! | [`STORE_FAILURES`] | counter | `kind`: the kind of the error, such as `unavailable` |
//!
//! The metrics cover this process's runners: summing over processes counts each job once. Stored
//! job counts are not included, because all processes that share a store see the same ones.

mod names;
mod runner;

pub use names::{
    BUCKETS, JOBS, LATENESS, LATENESS_MISSED, LEASES_LOST, RUN, SLOTS, STORE, STORE_FAILURES,
};
pub use runner::RunnerMetrics;
