//! Occurrences on days on which a zone's clocks change.

use dq_core::Timestamp;
use dq_core::sync::lock;

use crate::recurring::fixture::World;

fn at(text: &str) -> Timestamp {
    let (local, offset) = text.split_at(text.len() - 6);
    let time: jiff::Timestamp = format!("{local}:00{offset}").parse().unwrap();
    Timestamp::from_millis(time.as_millisecond())
}

async fn assert_runs(expression: &str, zone: &str, from: &str, expected: &[&str]) {
    let world = World::at(at(from));
    let declared = None;
    let program = world.start(declared).await;
    assert!(program.schedule().cron(expression, zone).upsert().await.unwrap());
    let expected: Vec<_> = expected.iter().map(|time| at(time)).collect();
    program.run_to(*expected.last().unwrap()).await.unwrap();
    let ran: Vec<_> = lock(&world.runs).iter().map(|(occurrence, _)| *occurrence).collect();
    assert_eq!(ran, expected, "{expression} in {zone} from {from}");
}

/// As in Vixie cron, times are *repeated* if the minute or hour starts with `*`: when clocks are
/// set back, they run in both hours. Others are *fixed*: they run after a gap, and only the first
/// time if they come twice. `dq-cron` tests the times themselves.
#[tokio::test]
async fn fixed_times_run_once_and_repeated_times_in_both_hours() {
    let zone = "America/New_York";
    let gap = ["2026-03-08T03:00-04:00", "2026-03-08T14:30-04:00", "2026-03-09T02:30-04:00"];
    assert_runs("30 2,14 * * *", zone, "2026-03-08T00:00-05:00", &gap).await;
    let fixed = ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"];
    assert_runs("30 1 * * *", zone, "2026-11-01T00:00-04:00", &fixed).await;
    let repeated = ["2026-11-01T01:30-04:00", "2026-11-01T01:00-05:00", "2026-11-01T01:30-05:00"];
    assert_runs("*/30 * * * *", zone, "2026-11-01T01:00-04:00", &repeated).await;
    let next_day = ["2011-12-29T09:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T09:00+14:00"];
    assert_runs("0 9 * * *", "Pacific/Apia", "2011-12-29T00:00-10:00", &next_day).await;
}
