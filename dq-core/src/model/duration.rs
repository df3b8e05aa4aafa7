//! Durations as people read and write them.

use std::time::Duration;

/// Formats the two largest units, such as `2d 4h`, `1h 30m`, `1.5s` or `15ms`.
///
/// Configuration and command line accept the result, which may have lost smaller units.
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
            let mut rest = seconds;
            let mut parts = Vec::new();
            for (length, unit) in [86_400, 3_600, 60, 1].into_iter().zip(units) {
                if rest >= length {
                    parts.push(format!("{}{unit}", rest / length));
                }
                rest %= length;
            }
            parts.truncate(2);
            parts.join(" ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_and_can_be_written_back() {
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
            assert_eq!(format_duration(read), text);
        }
        let units = [" 天", " 小时", " 分", " 秒", " 毫秒"];
        assert_eq!(format_duration_in(Duration::from_secs(200), units), "3 分 20 秒");
    }
}
