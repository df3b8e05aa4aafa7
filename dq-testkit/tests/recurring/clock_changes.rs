//! Occurrences on days on which a zone's clocks change.

use dq_core::Timestamp;
use dq_core::sync::lock;

use crate::fixture::World;

fn at(text: &str) -> Timestamp {
    let (local, offset) = text.split_at(text.len() - 6);
    let time: jiff::Timestamp = format!("{local}:00{offset}").parse().unwrap();
    Timestamp::from_millis(time.as_millisecond())
}

async fn assert_runs(expression: &str, zone: &str, from: &str, expected: &[&str]) {
    let world = World::at(at(from));
    let program = world.start(None).await;
    assert!(program.schedule().cron(expression, zone).upsert().await.unwrap());
    let expected: Vec<_> = expected.iter().map(|time| at(time)).collect();
    program.run_to(*expected.last().unwrap()).await.unwrap();
    let ran: Vec<_> = lock(&world.runs).iter().map(|(occurrence, _)| *occurrence).collect();
    assert_eq!(ran, expected, "{expression} in {zone} from {from}");
}

#[tokio::test]
async fn occurrences_in_a_gap_run_once_at_its_end() {
    let zone = "America/New_York";
    let end = "2026-03-08T03:00-04:00";
    assert_runs("30 2 * * *", zone, "2026-03-07T12:00-05:00", &[end, "2026-03-09T02:30-04:00"])
        .await;
    let times = [end, "2026-03-08T14:30-04:00", "2026-03-09T02:30-04:00"];
    assert_runs("30 2,14 * * *", zone, "2026-03-08T00:00-05:00", &times).await;
    let times = [end, "2026-03-09T02:00-04:00", "2026-03-09T02:15-04:00"];
    assert_runs("0,15,30 2 * * *", zone, "2026-03-08T00:00-05:00", &times).await;
    let (zone, midnight) = ("Africa/Cairo", ["2026-04-24T01:00+03:00"]);
    assert_runs("0 0 * * *", zone, "2026-04-23T12:00+02:00", &midnight).await;
    let times = ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"];
    assert_runs("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00+10:30", &times).await;
}

#[tokio::test]
async fn an_occurrence_of_a_day_that_did_not_exist_runs_at_the_start_of_the_next() {
    let times = ["2011-12-29T09:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T09:00+14:00"];
    assert_runs("0 9 * * *", "Pacific/Apia", "2011-12-29T00:00-10:00", &times).await;
}

#[tokio::test]
async fn times_of_an_hour_that_comes_twice_run_once_if_they_are_fixed_and_else_twice() {
    let zone = "America/New_York";
    let times = ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"];
    assert_runs("30 1 * * *", zone, "2026-11-01T00:00-04:00", &times).await;
    let times = ["2026-11-01T01:30-04:00", "2026-11-01T13:30-05:00", "2026-11-02T01:30-05:00"];
    assert_runs("30 1,13 * * *", zone, "2026-11-01T00:00-04:00", &times).await;
    let times = [
        "2026-11-01T01:00-04:00",
        "2026-11-01T01:30-04:00",
        "2026-11-01T01:00-05:00",
        "2026-11-01T01:30-05:00",
        "2026-11-01T02:00-05:00",
    ];
    assert_runs("*/30 * * * *", zone, "2026-11-01T00:30-04:00", &times).await;
}
