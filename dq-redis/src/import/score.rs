//! Parses scores of a sorted set as due times.

use dq_core::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Millis,
}

/// March 1973 in milliseconds, the year 5138 in seconds. Scores below it count as seconds, others
/// as milliseconds.
const SECONDS_LIMIT: f64 = 1e11;

impl Unit {
    /// Rounds up, so that no job is early. The error says why the score is no time.
    pub(super) fn parse(self, score: &[u8]) -> Result<Timestamp, String> {
        let text = String::from_utf8_lossy(score);
        let number: f64 = text.parse().map_err(|_| format!("the score {text} is not a number"))?;
        if !number.is_finite() {
            return Err(format!("the score {text} is not a time"));
        }
        match self {
            // Programs commonly use zero for "at once".
            Self::Millis if number > 0.0 && number < SECONDS_LIMIT => Err(format!(
                "scores such as {} are before 1973 in milliseconds: are they in seconds?",
                rounded(number)
            )),
            Self::Seconds if number >= SECONDS_LIMIT => Err(format!(
                "scores such as {} are after 5137 in seconds: are they in milliseconds?",
                rounded(number)
            )),
            // Larger numbers become the last time, which the limits refuse as too far in the
            // future.
            Self::Millis => Ok(Timestamp::from_millis(number.ceil() as i64)),
            Self::Seconds => Ok(Timestamp::from_millis((number * 1_000.0).ceil() as i64)),
        }
    }
}

/// One digit, so that many scores share one reason.
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
            (Unit::Seconds, "1700000000.0015", 1_700_000_000_002),
            (Unit::Seconds, "-5", -5_000),
        ] {
            let time = unit.parse(score.as_bytes());
            assert_eq!(time, Ok(Timestamp::from_millis(millis)), "{unit:?} {score}");
        }
    }

    #[test]
    fn scores_that_are_no_times_or_in_the_other_unit_are_refused() {
        for (unit, score, word) in [
            (Unit::Millis, "1700000000", "2e9"),
            (Unit::Millis, "1700000000", "in seconds?"),
            (Unit::Seconds, "1700000000000", "in milliseconds?"),
            (Unit::Millis, "inf", "not a time"),
            (Unit::Millis, "nan", "not a time"),
            (Unit::Millis, "x", "not a number"),
        ] {
            let reason = unit.parse(score.as_bytes()).unwrap_err();
            assert!(reason.contains(word), "{score}: {reason}");
        }
    }

    #[test]
    fn mutated_scores_are_times_or_refused() {
        dq_testkit::fuzz::check("scores", &["1700000000000", "1.7e+12", "0"], |score| {
            [Unit::Millis, Unit::Seconds].map(|unit| unit.parse(score).is_ok()).contains(&true)
        });
    }
}
