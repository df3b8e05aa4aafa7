//! A runner's metrics, as Prometheus reads them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{record, runner, schedule};
use dq_core::config::QueueSettings;
use dq_core::{
    Backend, ClaimParams, Dq, Error, ErrorKind, Event, JobContext, JobResult, LeasedJob,
    MemoryBackend, Middleware, Next, Observer, Outcome, QueueName, RunContext, Settled,
    SystemClock, Verdict, VirtualClock, Want,
};
use dq_metrics::RunnerMetrics;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;

fn value(metrics: &PrometheusHandle, series: &str) -> Option<String> {
    let text = metrics.render();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(series));
    lines.find_map(|rest| rest.strip_prefix(' ')).map(str::to_owned)
}

#[track_caller]
fn expect(metrics: &PrometheusHandle, wanted: &[(&str, &str)]) {
    for (series, wanted) in wanted {
        let text = metrics.render();
        assert_eq!(value(metrics, series).as_deref(), Some(*wanted), "{series}: {text}");
    }
}

struct SlotReader {
    metrics: PrometheusHandle,
    /// The numbers of busy and free slots at each start.
    seen: Arc<Mutex<Vec<[Option<String>; 2]>>>,
}

fn slots(metrics: &PrometheusHandle) -> [Option<String>; 2] {
    ["busy", "free"].map(|state| value(metrics, &format!("dq_slots{{state=\"{state}\"}}")))
}

#[dq_core::async_trait]
impl Middleware for SlotReader {
    async fn call(&self, job: JobContext, next: Next<'_>) -> JobResult {
        self.seen.lock().unwrap().push(slots(&self.metrics));
        next.run(job).await
    }
}

#[test]
fn slots_are_busy_while_handlers_run_and_gone_with_the_runner() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let seen = Arc::default();
    let reader = SlotReader { metrics: metrics.clone(), seen: Arc::clone(&seen) };
    record(&recorder, async {
        let dq = Dq::connect("memory:").await.unwrap();
        schedule(&dq, &["done", "skip", "dead"]).await;
        let (runner, finished) = runner(&dq, 3);
        let one_at_once = QueueSettings::new().concurrency(1);
        let runner = runner.concurrency(4).queue("OBEDIENT", one_at_once).middleware(reader);
        runner.run_until(finished.cancelled()).await.unwrap();
    });
    let numbers = |busy: &str, free: &str| [Some(busy.to_owned()), Some(free.to_owned())];
    assert_eq!(*seen.lock().unwrap(), vec![numbers("1", "3"); 3]);
    assert_eq!(slots(&metrics), numbers("0", "0"));
}

#[test]
fn outcomes_runs_and_calls_of_the_store_are_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    record(&recorder, async {
        let dq = Dq::connect("memory:").await.unwrap();
        schedule(&dq, &["done", "skip", "dead", "retry", "snooze", "throttle", "again"]).await;
        let (runner, finished) = runner(&dq, 11);
        runner.run_until(finished.cancelled()).await.unwrap();
    });
    let metrics = recorder.handle();
    for (outcome, count) in [
        ("done", "5"),
        ("skip", "1"),
        ("dead", "1"),
        ("retry", "1"),
        ("snooze", "1"),
        ("throttle", "1"),
        ("again", "1"),
    ] {
        let series = format!("dq_jobs_total{{queue=\"OBEDIENT\",outcome=\"{outcome}\"}}");
        expect(&metrics, &[(&series, count)]);
    }
    expect(
        &metrics,
        &[
            ("dq_run_seconds_count{queue=\"OBEDIENT\"}", "11"),
            ("dq_lateness_seconds_count{queue=\"OBEDIENT\"}", "11"),
        ],
    );
    for op in ["claim", "settle", "listen", "announce"] {
        let series = format!("dq_store_seconds_count{{op=\"{op}\"}}");
        assert!(value(&metrics, &series).is_some(), "{op}");
    }
}

/// The queue is paused while a job is due, and later has no job.
#[test]
fn a_missed_lateness_objective_is_a_gauge_that_ends_with_the_runner() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let missed = || value(&recorder.handle(), "dq_lateness_missed{queue=\"OBEDIENT\"}");
    record(&recorder, async {
        let clock = Arc::new(VirtualClock::default());
        let store = Arc::new(MemoryBackend::new(clock.clone()));
        let settings = QueueSettings::new().lateness("99% < 100ms".parse().unwrap());
        let builder = Dq::builder().backend(store).clock(clock.clone()).defaults(settings);
        let dq = builder.connect().await.unwrap();
        schedule(&dq, &["done"]).await;
        let queue = dq.queue("OBEDIENT").unwrap();
        queue.pause().await.unwrap();
        let stop = CancellationToken::new();
        let (runner, _) = runner(&dq, 1);
        let expect = async |wanted: &str| {
            // The objective is compared every 15 s.
            for _ in 0..1_000 {
                if missed().as_deref() == Some(wanted) {
                    return;
                }
                clock.advance(Duration::from_millis(100));
                tokio::task::yield_now().await;
            }
            panic!("{:?}, not {wanted}", missed());
        };
        let steps = async {
            expect("1").await;
            queue.purge().await.unwrap();
            expect("0").await;
            schedule(&dq, &["done"]).await;
            expect("1").await;
            stop.cancel();
        };
        let (ended, ()) = tokio::join!(runner.run_until(stop.cancelled()), steps);
        ended.unwrap();
    });
    assert_eq!(missed().as_deref(), Some("0"));
}

#[test]
fn lost_leases_and_failed_calls_are_counted_and_durations_are_seconds() {
    let recorder = PrometheusBuilder::new().build_recorder();
    record(&recorder, async {
        let dq = Dq::connect("memory:").await.unwrap();
        let leased = claim(&dq).await;
        let lease = leased.lease();
        let run = RunContext {
            state: Arc::default(),
            cancelled: CancellationToken::new(),
            clock: Arc::new(SystemClock),
            started: leased.job.due + Duration::from_millis(1500),
            max_attempts: 5,
            steps: 0,
            worker: "test".into(),
            store: None,
            may_end_job: Arc::default(),
        };
        let job = &JobContext::new(leased, run);
        let (result, verdict, settled) = (&Ok(Outcome::Done), &Verdict::Done, Settled::LostLease);
        let duration = Duration::from_millis(250);
        let metrics = RunnerMetrics::new();
        for event in [
            Event::Started(job),
            Event::Finished { job, result, verdict, duration },
            Event::StoreCalled { operation: "claim", duration },
            Event::Settled { lease: &lease, verdict, settled, repeated: false },
            // The first call took effect, and its answer was lost.
            Event::Settled { lease: &lease, verdict, settled, repeated: true },
            Event::LeaseLost(&lease),
            Event::StoreFailed(&Error::new(ErrorKind::Unavailable, "no")),
        ] {
            metrics.on(&event);
        }
    });
    expect(
        &recorder.handle(),
        &[
            ("dq_lateness_seconds_sum{queue=\"OBEDIENT\"}", "1.5"),
            ("dq_run_seconds_sum{queue=\"OBEDIENT\"}", "0.25"),
            ("dq_store_seconds_sum{op=\"claim\"}", "0.25"),
            ("dq_jobs_total{queue=\"OBEDIENT\",outcome=\"stale\"}", "1"),
            ("dq_jobs_total{queue=\"OBEDIENT\",outcome=\"done\"}", "1"),
            ("dq_leases_lost_total{queue=\"OBEDIENT\"}", "1"),
            ("dq_store_failures_total{kind=\"unavailable\"}", "1"),
        ],
    );
}

async fn claim(dq: &Dq) -> LeasedJob {
    schedule(dq, &["done"]).await;
    let queue = QueueName::new("OBEDIENT").unwrap();
    let wants = [Want::new(queue, 1, Duration::from_secs(30))];
    let mut claimed = dq.backend().claim(ClaimParams::new(&wants, 1, "test")).await.unwrap();
    claimed.jobs.pop().unwrap()
}
