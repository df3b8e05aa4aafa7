//! Durations as people read and write them. Configuration and command line accept both forms.

use std::time::Duration;

/// Formats the two largest units that are not zero, such as `2d 4h`, `3m 20s` or `15ms`; for
/// measured times.
///
/// Below ten seconds it has tenths, such as `1.5s`; less than a millisecond is `0ms`. Smaller units
/// are lost.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    format_duration_in(duration, ["d", "h", "m", "s", "ms"])
}

/// As [`format_duration`], with these units for days, hours, minutes, seconds and milliseconds.
#[must_use]
pub fn format_duration_in(duration: Duration, units: [&str; 5]) -> String {
    let [.., second, milli] = units;
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    match (seconds, millis / 100) {
        (0, _) => format!("{millis}{milli}"),
        // From ten seconds on, tenths are noise.
        (1..10, tenths @ 1..) => format!("{seconds}.{tenths}{second}"),
        _ => {
            let mut parts = parts(duration, &units[..4]);
            parts.truncate(2);
            parts.join(" ")
        }
    }
}

/// Formats all units that are not zero, such as `1d 2h 30m 1ms`; for settings and limits, and for
/// texts that are read back.
#[must_use]
pub fn format_exact_duration(duration: Duration) -> String {
    if duration.is_zero() {
        return "0ms".to_owned();
    }
    parts(duration, &["d", "h", "m", "s", "ms", "us", "ns"]).join(" ")
}

/// Divides by these units, from days on down to at most nanoseconds. Leaves out zeros.
fn parts(duration: Duration, units: &[&str]) -> Vec<String> {
    const NANOS: [u128; 7] =
        [86_400_000_000_000, 3_600_000_000_000, 60_000_000_000, 1_000_000_000, 1_000_000, 1_000, 1];
    let mut rest = duration.as_nanos();
    let mut parts = Vec::new();
    for (length, unit) in NANOS.into_iter().zip(units) {
        if rest >= length {
            parts.push(format!("{}{unit}", rest / length));
        }
        rest %= length;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_times_have_two_units() {
        for (millis, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (1_500, "1.5s"),
            (9_999, "9.9s"),
            (10_900, "10s"),
            (200_000, "3m 20s"),
            (5_400_000, "1h 30m"),
            (86_401_000, "1d 1s"),
            (273_661_000, "3d 4h"),
            (3_153_600_000_000, "36500d"),
        ] {
            let duration = Duration::from_millis(millis);
            assert_eq!(format_duration(duration), text);
            let read = humantime::parse_duration(text).unwrap();
            let lost = duration.checked_sub(read).unwrap();
            assert!(lost <= duration / 10, "{text} is {lost:?} too short");
        }
        assert_eq!(format_duration(Duration::from_micros(999)), "0ms");
        let units = [" 天", " 小时", " 分", " 秒", " 毫秒"];
        assert_eq!(format_duration_in(Duration::from_secs(200), units), "3 分 20 秒");
    }
    #[test]
    fn exact_durations_are_read_back_the_same() {
        let day = Duration::from_secs(86_400);
        for (duration, text) in [
            (Duration::ZERO, "0ms"),
            (Duration::from_micros(500), "500us"),
            (Duration::from_millis(10_500), "10s 500ms"),
            (Duration::from_secs(3_661), "1h 1m 1s"),
            (day + Duration::from_millis(500), "1d 500ms"),
            (366 * day + Duration::from_nanos(1), "366d 1ns"),
            (Duration::MAX, "213503982334601d 7h 15s 999ms 999us 999ns"),
        ] {
            assert_eq!(format_exact_duration(duration), text);
            assert_eq!(humantime::parse_duration(text), Ok(duration));
        }
    }
}
