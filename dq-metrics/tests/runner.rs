//! A runner's metrics, as a debugging recorder sees them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Countdown, block_on, runner, schedule};
use dq_core::config::QueueSettings;
use dq_core::{
    Backend, ClaimParams, Dq, Error, ErrorKind, Event, JobContext, JobResult, LeasedJob,
    MemoryBackend, Middleware, Next, Observer, Outcome, QueueName, RunContext, Settled,
    SystemClock, Verdict, VirtualClock, Want,
};
use dq_metrics::RunnerMetrics;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio_util::sync::CancellationToken;

/// A histogram's value is its sample count.
fn values(snapshotter: &Snapshotter) -> BTreeMap<String, i64> {
    let metrics = snapshotter.snapshot().into_vec().into_iter();
    metrics
        .map(|(key, _, _, value)| {
            let labels = key.key().labels().map(|label| label.value().to_owned());
            let name = std::iter::once(key.key().name().to_owned()).chain(labels);
            let value = match value {
                DebugValue::Counter(count) => count.cast_signed(),
                DebugValue::Gauge(value) => value.into_inner().round() as i64,
                DebugValue::Histogram(samples) => samples.len().try_into().unwrap(),
            };
            (name.collect::<Vec<_>>().join(" "), value)
        })
        .collect()
}

/// Snapshots of the debugging recorder reset the values, so it cannot read them.
struct SlotReader(PrometheusHandle, Arc<Mutex<Vec<[String; 2]>>>);

impl SlotReader {
    fn read(&self) -> [String; 2] {
        let text = self.0.render();
        ["busy", "free"].map(|state| {
            let series = format!("dq_slots{{state=\"{state}\"}} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&series));
            line.unwrap_or_else(|| panic!("no {series} in {text}")).to_owned()
        })
    }
}

#[dq_core::async_trait]
impl Middleware for SlotReader {
    async fn call(&self, job: JobContext, next: Next<'_>) -> JobResult {
        let slots = self.read();
        self.1.lock().unwrap().push(slots);
        next.run(job).await
    }
}

#[test]
fn slots_are_busy_while_handlers_run_and_gone_with_the_runner() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let seen = Arc::default();
    let reader = || SlotReader(recorder.handle(), Arc::clone(&seen));
    metrics::with_local_recorder(&recorder, || {
        block_on(async {
            let dq = Dq::connect("memory:").await.unwrap();
            schedule(&dq, &["done", "skip", "dead"]).await;
            let countdown = Countdown::new(3);
            let runner = runner(&dq, &countdown)
                .concurrency(4)
                .queue("OBEDIENT", QueueSettings::new().concurrency(1))
                .middleware(reader());
            runner.run_until(countdown.finished.cancelled()).await.unwrap();
        });
    });
    assert_eq!(*seen.lock().unwrap(), [["1", "3"]; 3]);
    assert_eq!(reader().read(), ["0", "0"]);
}

#[test]
fn runs_lateness_and_calls_of_the_store_are_measured() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        block_on(async {
            let dq = Dq::connect("memory:").await.unwrap();
            schedule(&dq, &["done", "skip", "dead", "retry", "snooze", "again"]).await;
            let countdown = Countdown::new(9);
            runner(&dq, &countdown).run_until(countdown.finished.cancelled()).await.unwrap();
        });
    });
    let values = values(&snapshotter);
    for (name, value) in [
        ("dq_jobs_total OBEDIENT done", 4),
        ("dq_jobs_total OBEDIENT skip", 1),
        ("dq_jobs_total OBEDIENT dead", 1),
        ("dq_jobs_total OBEDIENT retry", 1),
        ("dq_jobs_total OBEDIENT snooze", 1),
        ("dq_jobs_total OBEDIENT again", 1),
        ("dq_run_seconds OBEDIENT", 9),
        ("dq_lateness_seconds OBEDIENT", 9),
    ] {
        assert_eq!(values[name], value, "{name}: {values:?}");
    }
    for op in ["claim", "settle", "listen", "announce"] {
        assert!(values[&format!("dq_store_seconds {op}")] > 0, "{op}: {values:?}");
    }
}

/// The queue is paused while a job is due, and later has no job.
#[test]
fn a_missed_lateness_objective_is_a_gauge_that_ends_with_the_runner() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let missed = || {
        let text = recorder.handle().render();
        let mut lines = text.lines();
        let line =
            lines.find_map(|line| line.strip_prefix("dq_lateness_missed{queue=\"OBEDIENT\"} "));
        line.map(str::to_owned)
    };
    metrics::with_local_recorder(&recorder, || {
        block_on(async {
            let clock = Arc::new(VirtualClock::default());
            let store = Arc::new(MemoryBackend::new(clock.clone()));
            let settings = QueueSettings::new().lateness("99% < 100ms".parse().unwrap());
            let builder = Dq::builder().backend(store).clock(clock.clone()).defaults(settings);
            let dq = builder.connect().await.unwrap();
            schedule(&dq, &["done"]).await;
            let queue = dq.queue("OBEDIENT").unwrap();
            queue.pause().await.unwrap();
            let stop = CancellationToken::new();
            let runner = runner(&dq, &Countdown::new(1));
            let running = runner.run_until(stop.clone().cancelled_owned());
            tokio::pin!(running);
            let expect = async |value: &str| {
                // The objective is compared every 15 s.
                for _ in 0..1_000 {
                    if missed().as_deref() == Some(value) {
                        return;
                    }
                    clock.advance(Duration::from_millis(100));
                    tokio::task::yield_now().await;
                }
                panic!("{:?}, not {value}", missed());
            };
            let steps = async {
                expect("1").await;
                queue.purge().await.unwrap();
                expect("0").await;
                schedule(&dq, &["done"]).await;
                expect("1").await;
                stop.cancel();
            };
            let (ended, ()) = tokio::join!(running, steps);
            ended.unwrap();
        });
    });
    assert_eq!(missed().as_deref(), Some("0"));
}

#[test]
fn lost_leases_ignored_results_and_failed_calls_are_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        block_on(async {
            let dq = Dq::connect("memory:").await.unwrap();
            let lease = claim(&dq).await.lease();
            let metrics = RunnerMetrics::new();
            let settled = |settled, repeated| {
                let verdict = &Verdict::Done;
                metrics.on(&Event::Settled { lease: &lease, verdict, settled, repeated });
            };
            settled(Settled::LostLease, false);
            // The first call took effect, and its answer was lost.
            settled(Settled::LostLease, true);
            metrics.on(&Event::LeaseLost(&lease));
            metrics.on(&Event::StoreFailed(&Error::new(ErrorKind::Unavailable, "no")));
        });
    });
    let values = values(&snapshotter);
    for (name, value) in [
        ("dq_jobs_total OBEDIENT stale", 1),
        ("dq_jobs_total OBEDIENT done", 1),
        ("dq_leases_lost_total OBEDIENT", 1),
        ("dq_store_failures_total unavailable", 1),
    ] {
        assert_eq!(values[name], value, "{name}: {values:?}");
    }
}

#[test]
fn durations_are_seconds() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        block_on(async {
            let dq = Dq::connect("memory:").await.unwrap();
            let leased = claim(&dq).await;
            let run = RunContext {
                state: Arc::default(),
                cancelled: CancellationToken::new(),
                clock: Arc::new(SystemClock),
                started: leased.job.due + Duration::from_millis(1500),
                max_attempts: 5,
                steps: 0,
                worker: "test".into(),
            };
            let job = &JobContext::new(leased, run);
            let metrics = RunnerMetrics::new();
            metrics.on(&Event::Started(job));
            let (result, verdict) = (&Ok(Outcome::Done), &Verdict::Done);
            let duration = Duration::from_millis(250);
            metrics.on(&Event::Finished { job, result, verdict, duration });
            let duration = Duration::from_millis(20);
            metrics.on(&Event::StoreCalled { operation: "claim", duration });
        });
    });
    let mut samples: Vec<(String, f64)> = Vec::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        if let DebugValue::Histogram(values) = value {
            assert_eq!(values.len(), 1);
            samples.push((key.key().name().to_owned(), values[0].into_inner()));
        }
    }
    samples.sort_by(|a, b| a.0.cmp(&b.0));
    let expected =
        [("dq_lateness_seconds", 1.5), ("dq_run_seconds", 0.25), ("dq_store_seconds", 0.02)];
    assert_eq!(samples, expected.map(|(name, value)| (name.to_owned(), value)));
}

async fn claim(dq: &Dq) -> LeasedJob {
    schedule(dq, &["done"]).await;
    let queue = QueueName::new("OBEDIENT").unwrap();
    let wants = [Want::new(queue, 1, Duration::from_secs(30))];
    let mut claimed = dq.backend().claim(ClaimParams::new(&wants, 1, "test")).await.unwrap();
    claimed.jobs.pop().unwrap()
}
