//! Occurrences around clock changes.

use std::time::Duration;

use dq_cron::{Cron, ErrorKind, Interval, Times};
use jiff::{Timestamp, Zoned};

fn millis(text: &str) -> i64 {
    match text.parse::<Zoned>() {
        Ok(zoned) => zoned.timestamp().as_millisecond(),
        Err(_) => text.parse::<Timestamp>().unwrap().as_millisecond(),
    }
}

fn cron(expression: &str, zone: &str) -> Times {
    Cron::new(expression, zone).unwrap().into()
}

/// `expected`: civil times with their offsets.
#[track_caller]
fn assert_fires(expression: &str, zone: &str, from: &str, expected: &[&str]) {
    let times = cron(expression, zone);
    let mut time = millis(&format!("{from}[{zone}]"));
    let mut fired = Vec::new();
    for _ in expected {
        time = times.next_after(time).unwrap();
        let zoned = Timestamp::from_millisecond(time).unwrap().in_tz(zone).unwrap();
        fired.push(zoned.strftime("%Y-%m-%dT%H:%M%:z").to_string());
    }
    assert_eq!(fired, expected, "{expression} in {zone} after {from}");
}

/// `all_zones.rs` compares every kind of change with the wall clock.
#[test]
fn fixed_times_happen_once_and_repeated_times_whenever_the_wall_clock_shows_them() {
    let zone = "America/New_York";
    let end_of_gap = "2026-03-08T03:00-04:00";
    assert_fires("30 2 * * *", zone, "2026-03-07T12:00", &[end_of_gap, "2026-03-09T02:30-04:00"]);
    assert_fires("@hourly", zone, "2026-03-08T01:30", &[end_of_gap]);
    // A day that did not exist.
    assert_fires(
        "0 9 * * *",
        "Pacific/Apia",
        "2011-12-29T00:00",
        &["2011-12-29T09:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T09:00+14:00"],
    );
    // From within the second pass of the hour.
    assert_fires("30 1 * * *", zone, "2026-11-01T01:10-05:00", &["2026-11-02T01:30-05:00"]);
    assert_fires(
        "*/30 * * * *",
        zone,
        "2026-11-01T01:00-04:00",
        &["2026-11-01T01:30-04:00", "2026-11-01T01:00-05:00", "2026-11-01T01:30-05:00"],
    );
}

#[test]
fn seconds_and_years_are_optional_fields() {
    let seconds = cron("*/10 * * * * *", "UTC");
    assert_eq!(
        seconds.next_after(millis("2026-01-01T00:00:05.5Z")),
        Some(millis("2026-01-01T00:00:10Z"))
    );
    let year = cron("0 0 12 1 1 * 2027", "UTC");
    let only = millis("2027-01-01T12:00Z");
    assert_eq!(year.next_after(millis("2026-01-01T00:00Z")), Some(only));
    assert_eq!(year.next_after(only), None, "there is no later one");
    // A clock set back shows the last times again.
    let repeated = cron("0 */30 2 31 10 * 2027", "Europe/Berlin");
    let mut time = millis("2027-10-31T00:00Z");
    for next in ["2027-10-31T00:30Z", "2027-10-31T01:00Z", "2027-10-31T01:30Z"] {
        assert_eq!(repeated.next_after(time), Some(millis(next)));
        time = millis(next);
    }
    assert_eq!(repeated.next_after(time), None);
}

#[test]
fn both_days_have_to_match_with_a_plus_and_one_of_them_without() {
    assert_fires("0 9 13 * FRI", "UTC", "2026-02-13T10:00", &["2026-02-20T09:00+00:00"]);
    assert_fires("0 9 13 * +FRI", "UTC", "2026-02-13T10:00", &["2026-03-13T09:00+00:00"]);
    assert_fires("0 9 L * *", "UTC", "2026-02-13T10:00", &["2026-02-28T09:00+00:00"]);
}

#[test]
fn days_can_be_the_last_the_nth_the_nearest_or_any() {
    let february = "2026-02-01T12:00";
    for (expression, first) in [
        ("0 9 * * FRI#L", "2026-02-27T09:00+00:00"),
        // Sunday is 0, so 6 is Saturday; to Quartz it is Friday.
        ("0 9 * * 6L", "2026-02-28T09:00+00:00"),
        ("0 9 * * MON#2", "2026-02-09T09:00+00:00"),
        // The 15th is a Sunday.
        ("0 9 15W * *", "2026-02-16T09:00+00:00"),
        ("0 9 13 * ?", "2026-02-13T09:00+00:00"),
        ("0 9 ? * WED", "2026-02-04T09:00+00:00"),
    ] {
        assert_fires(expression, "UTC", february, &[first]);
    }
}

#[test]
fn the_last_occurrence_between_two_times_is_found_without_a_walk() {
    let zone = "America/New_York";
    let nightly = cron("30 2 * * *", zone);
    let (start, end) = (millis("2026-02-01T12:00Z"), millis("2026-03-08T20:00Z"));
    assert_eq!(nightly.last_between(start, end), Some(millis("2026-03-08T07:00Z")));
    assert_eq!(nightly.last_between(end, end + 60_000), None);
    // A walk takes 292,000 steps.
    let every_second = cron("* * 0-1 * * *", zone);
    let night = millis("2026-11-01T12:00Z");
    assert_eq!(
        every_second.last_between(night - 40 * 86_400_000, night),
        Some(millis("2026-11-01T06:59:59Z"))
    );
}

#[test]
fn intervals_are_multiples_since_1970() {
    let interval = Times::from(Interval::new(Duration::from_secs(90)).unwrap());
    assert_eq!(interval.next_after(0), Some(90_000));
    assert_eq!(interval.next_after(89_999), Some(90_000));
    assert_eq!(interval.next_after(-1), Some(0));
    assert_eq!(interval.last_between(0, 500_000), Some(450_000));
    assert_eq!(interval.last_between(450_000, 500_000), None);
    assert_eq!(interval.next_after(i64::MAX), None);
    assert_eq!(interval.to_string(), "every 1m 30s");
    for impossible in [Duration::ZERO, Duration::from_nanos(900), Duration::MAX] {
        assert_eq!(Interval::new(impossible).unwrap_err().kind(), ErrorKind::Interval);
    }
}

#[test]
fn what_cannot_be_is_refused_and_named() {
    for (expression, zone, kind, named) in [
        ("", "UTC", ErrorKind::Expression, "it is empty"),
        ("61 * * * *", "UTC", ErrorKind::Expression, "\"61 * * * *\""),
        (
            "61 * * * *",
            "UTC",
            ErrorKind::Expression,
            "the minute \"61\" is not valid; it is 0 to 59",
        ),
        ("0 9-25 * * MON-FRI", "UTC", ErrorKind::Expression, "the hour \"9-25\""),
        ("30 2 * *", "UTC", ErrorKind::Expression, "5"),
        ("30 2 * * MOON", "UTC", ErrorKind::Expression, "MOON"),
        ("@often", "UTC", ErrorKind::Expression, "\"@often\""),
        ("*/0 * * * *", "UTC", ErrorKind::Expression, "*/0"),
        ("0 0 31 2 *", "UTC", ErrorKind::NeverMatches, "\"0 0 31 2 *\""),
        ("0 0 30 2 MON#9", "UTC", ErrorKind::Expression, "MON#9"),
        ("0 0 * * *", "Stockholm", ErrorKind::Zone, "\"Europe/Stockholm\""),
        ("0 0 * * *", "America/New York", ErrorKind::Zone, "\"America/New_York\""),
        ("0 0 * * *", "Mars/Olympus", ErrorKind::Zone, "IANA"),
        ("0 0 * * *", "", ErrorKind::Zone, "IANA"),
    ] {
        let error = Cron::new(expression, zone).expect_err(expression);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().to_uppercase().contains(&named.to_uppercase()), "{error}");
    }
}
