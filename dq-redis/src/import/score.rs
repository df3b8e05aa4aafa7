//! Scores that are times.

use dq_core::Timestamp;

/// What a score counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Millis,
}

/// March 1973 in milliseconds, and the year 5138 in seconds.
const NEITHER: f64 = 1e11;

impl Unit {
    /// The time that a score means, rounded up so that nothing is early; or why it means none.
    pub(super) fn read(self, score: &[u8]) -> Result<Timestamp, String> {
        let text = String::from_utf8_lossy(score);
        let number: f64 = text.parse().map_err(|_| format!("the score {text} is no number"))?;
        if !number.is_finite() {
            return Err(format!("the score {text} is no time"));
        }
        match self {
            // Zero is how some say "at once".
            Self::Millis if number > 0.0 && number < NEITHER => Err(format!(
                "scores like {} are before 1973 in milliseconds: are they in seconds?",
                rounded(number)
            )),
            Self::Seconds if number >= NEITHER => Err(format!(
                "scores like {} are far away in seconds: are they in milliseconds?",
                rounded(number)
            )),
            // More milliseconds than fit are cut off at the end, and then refused as too far away.
            Self::Millis => Ok(Timestamp::from_millis(number.ceil() as i64)),
            Self::Seconds => Ok(Timestamp::from_millis((number * 1_000.0).ceil() as i64)),
        }
    }
}

/// One digit, so that many scores have one reason.
fn rounded(number: f64) -> String {
    format!("{number:.0e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_times_rounded_up() {
        for (unit, score, millis) in [
            (Unit::Millis, "1700000000000", 1_700_000_000_000),
            (Unit::Millis, "1700000000000.5", 1_700_000_000_001),
            (Unit::Millis, "1.7e+12", 1_700_000_000_000),
            (Unit::Millis, "0", 0),
            (Unit::Millis, "1e+300", i64::MAX),
            (Unit::Seconds, "1700000000", 1_700_000_000_000),
            (Unit::Seconds, "1700000000.0015", 1_700_000_000_002),
            (Unit::Seconds, "-5", -5_000),
        ] {
            let time = unit.read(score.as_bytes());
            assert_eq!(time, Ok(Timestamp::from_millis(millis)), "{unit:?} {score}");
        }
    }

    #[test]
    fn scores_in_the_other_unit_are_not_guessed_at() {
        let reason = Unit::Millis.read(b"1700000000").unwrap_err();
        assert!(reason.contains("2e9") && reason.contains("in seconds?"), "{reason}");
        let reason = Unit::Seconds.read(b"1700000000000").unwrap_err();
        assert!(reason.contains("in milliseconds?"), "{reason}");
        for score in ["inf", "-inf", "nan", "x", ""] {
            assert!(Unit::Millis.read(score.as_bytes()).is_err(), "{score}");
        }
    }
}
