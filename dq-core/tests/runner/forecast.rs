//! Forecasts and simulations of queues with limits, judged by a runner on the virtual clock.

use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_core::{Clock, DurationExt, Outcome, Timestamp};
use tokio::sync::mpsc;

use crate::runner::fixture::{Fixture, QUEUE, TestHandler};

const MINUTE: i64 = 60_000;

/// Schedules jobs for a full minute. Returns when the last should have started by the forecast and
/// by the simulation, and when it has.
async fn last_start(settings: QueueSettings, run_time: Duration, jobs: u64) -> [Duration; 3] {
    let mut fixture = Fixture::new().await;
    let (sender, mut starts) = mpsc::unbounded_channel();
    let handler = TestHandler::new(move |job, _| {
        let sender = sender.clone();
        async move {
            let _ = sender.send(job.now());
            job.sleep(run_time).await;
            Ok(Outcome::Done)
        }
    });
    fixture
        .start(|runner| runner.concurrency(100).handler(handler.with(settings.concurrency(100))));
    // The run time becomes known.
    fixture.schedule("x").await;
    fixture.pass(31.seconds()).await;
    let queue = fixture.queue();
    let minute = fixture.clock.now().as_millis() / MINUTE + 1;
    let due = Timestamp::from_millis(minute * MINUTE);
    for _ in 0..jobs {
        let payload = serde_json::to_vec("x").unwrap();
        assert!(queue.schedule(payload, "application/json").at(due).await.unwrap().is_stored());
    }

    let forecast = fixture.dq.forecast_all(10.minutes()).await.unwrap().remove(0);
    let peak = forecast.peak().unwrap();
    assert_eq!((peak.from, peak.due), (due, jobs));
    let by_forecast = peak.drained_by.unwrap();
    let simulation = fixture.dq.simulate(10.minutes()).run_time(QUEUE, run_time).await.unwrap();
    let simulated = simulation.queues[0].drained.unwrap();

    fixture.pass(4.minutes()).await;
    let starts: Vec<Timestamp> = std::iter::from_fn(|| starts.try_recv().ok()).collect();
    assert_eq!(starts.len() as u64, jobs + 1);
    let last = *starts.iter().max().unwrap();
    fixture.stop_by(1.seconds()).await;
    [by_forecast, simulated, last].map(|at| at.since(due))
}

#[tokio::test]
async fn a_rate_is_forecast_exactly() {
    let settings = QueueSettings::new().rate("10/1s burst 20".parse().unwrap());
    // Twenty start at once, the others one by one.
    let [forecast, simulated, last] = last_start(settings, 50.millis(), 1_200).await;
    assert_eq!([forecast, simulated], [118.seconds(); 2]);
    assert!((118_000..118_200).contains(&last.as_millis()), "{last:?}");
}

#[tokio::test]
async fn max_running_is_forecast_as_well_as_the_run_time_is_known() {
    let settings = QueueSettings::new().max_running(3);
    let [forecast, simulated, last] = last_start(settings, 1_000.millis(), 300).await;
    assert_eq!(simulated, 99.seconds());
    for expected in [simulated, forecast] {
        let error = (expected.as_secs_f64() / last.as_secs_f64() - 1.0).abs();
        assert!(error < 0.15, "{expected:?} {last:?}");
    }
}
