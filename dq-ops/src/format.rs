//! Values as people read them.

use std::time::Duration;

use crate::jobs::PayloadView;
use crate::raw_json::RawJson;

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Formats the two largest units, such as `3 min 5 s` with the units ` d`, ` h`, ` min`, ` s` and
/// ` ms`.
#[must_use]
pub fn duration(millis: u64, units: [&str; 5]) -> String {
    const LENGTHS: [u64; 5] = [86_400_000, 3_600_000, 60_000, 1_000, 1];
    let largest = LENGTHS.iter().position(|length| millis >= *length).unwrap_or(4);
    let whole = format!("{}{}", millis / LENGTHS[largest], units[largest]);
    // Milliseconds beside seconds are noise.
    if largest >= 3 {
        return whole;
    }
    match millis % LENGTHS[largest] / LENGTHS[largest + 1] {
        0 => whole,
        rest => format!("{whole} {rest}{}", units[largest + 1]),
    }
}

impl PayloadView {
    /// Returns the payload as people read it: indented JSON, text, or Base64.
    #[must_use]
    pub fn shown(&self) -> String {
        let json = self.json.as_ref().map(RawJson::pretty);
        json.or_else(|| self.text.clone()).or_else(|| self.base64.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_have_their_two_largest_units() {
        for (millis, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (41_900, "41 s"),
            (60_000, "1 min"),
            (185_000, "3 min 5 s"),
            (7_980_000, "2 h 13 min"),
            (352_800_000, "4 d 2 h"),
        ] {
            assert_eq!(duration(millis, [" d", " h", " min", " s", " ms"]), text);
        }
    }
}
