use std::time::Duration;

use dq_core::{Due, DurationExt};
use dq_ops::{Role, SimulationRequest};
use serde_json::{Value, json};

use crate::fixture::Fixture;

#[tokio::test]
async fn a_forecast_of_one_queue_refuses_a_window_out_of_range_and_clamps_its_steps() {
    let fixture = Fixture::new().await;
    fixture.schedule("a", Due::After(90.seconds())).await;
    let session = fixture.session(Role::Viewer);

    let forecast = session.forecast(&fixture.queue, 2.minutes(), 2).await.unwrap();
    assert_eq!(forecast.counts, [0, 1]);
    let longest = session.forecast(&fixture.queue, 366.days(), usize::MAX).await.unwrap();
    assert_eq!((longest.counts.len(), longest.step_ms * 240), (240, 366 * 86_400_000));
    for window in [59.seconds(), 367.days(), Duration::MAX] {
        let refused = session.forecast(&fixture.queue, window, 2).await.unwrap_err();
        assert!(refused.message().ends_with("it must be 1m to 366d"), "{refused}");
    }
}

#[tokio::test]
async fn a_forecast_of_all_queues_has_the_hours_of_the_clock_for_seven_days_at_most() {
    let fixture = Fixture::new().await;
    fixture.clock.advance(50.minutes());
    for minutes in [0, 5, 15, 20, 80, 60 * 24 * 6] {
        fixture.schedule_in(&fixture.queue, Due::After(minutes.minutes())).await;
    }
    let session = fixture.session(Role::Viewer);

    let day = session.forecasts(24.hours()).await.unwrap();
    let mail = &day.queues[0];
    assert_eq!((mail.overdue, mail.due(), mail.hours.len()), (1, 4, 25));
    let first: Vec<_> = mail.hours.iter().take(4).map(|hour| hour.due).collect();
    assert_eq!(first, [1, 2, 1, 0]);

    let week = session.forecasts(7.days()).await.unwrap();
    assert_eq!((week.queues[0].due(), week.queues[0].hours.len()), (5, 7 * 24 + 1));
    for window in [59.seconds(), 8.days()] {
        let refused = session.forecasts(window).await.unwrap_err();
        assert!(refused.message().ends_with("it must be 1m to 7d"), "{refused}");
    }
}

fn request(fields: Value) -> SimulationRequest {
    serde_json::from_value(fields).unwrap()
}

#[tokio::test]
async fn a_simulation_refuses_options_that_are_out_of_range() {
    let fixture = Fixture::new().await;
    let session = fixture.session(Role::Operator);
    for (field, value, kind) in [
        ("load", json!(0), "invalid input"),
        ("window", json!("32d"), "invalid input"),
        ("run_time", json!({"MAIL": "0s"}), "invalid input"),
        ("start", json!("2020-01-01T00:00:00Z"), "conflict"),
    ] {
        let refused = session.simulate(&request(json!({ field: value }))).await.unwrap_err();
        assert_eq!(refused.kind(), kind, "{field}: {refused}");
    }
}

#[tokio::test]
async fn a_simulation_that_nobody_awaits_keeps_others_out_until_it_ends() {
    let fixture = Fixture::new().await;
    fixture.schedule_in(&fixture.queue, Due::After(1.hours())).await;
    let session = fixture.session(Role::Operator);
    let request = request(json!({"default_concurrency": 3, "default_run_time": "1m"}));

    tokio::select! {
        biased;
        played = session.simulate(&request) => panic!("it has ended at once: {played:?}"),
        () = std::future::ready(()) => {}
    }

    let refused = session.simulate(&request).await.unwrap_err();
    assert_eq!(refused.kind(), "conflict", "{refused}");
    while let Err(error) = session.simulate(&request).await {
        assert_eq!(error.kind(), "conflict", "{error}");
        tokio::task::yield_now().await;
    }
}
