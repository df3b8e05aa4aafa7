//! Numbers, durations and times as people read them.

use std::time::Duration;

use dq_core::{Timestamp, format_duration, format_duration_in};
use dq_ops::Quantiles;

use super::chrome::Chrome;
use super::text::Lang;

pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number, without decimals from 10 on.
pub(super) fn rate(value: f64) -> String {
    if value == 0.0 || value >= 10.0 {
        return number(value.round() as u64);
    }
    format!("{value:.1}")
}

pub(super) fn duration(millis: u64, lang: Lang) -> String {
    let duration = Duration::from_millis(millis);
    match lang {
        Lang::En => format_duration(duration),
        Lang::Zh => format_duration_in(duration, [" 天", " 小时", " 分", " 秒", " 毫秒"]),
    }
}

pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1_024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// Formats a UTC time to the minute, such as `2027-01-31 10:00`.
pub(super) fn minute(at: Timestamp) -> String {
    let text = at.to_string().replacen('T', " ", 1);
    text.get(..16).unwrap_or(&text).to_owned()
}

/// Formats an RFC 3339 time to the second, such as `2027-03-29 02:30:00 +02:00`. Jitter gives
/// times a fraction, which is long and useless.
pub(super) fn second(time: &str) -> String {
    let Some((date, clock)) = time.split_once('T') else { return time.to_owned() };
    let is_clock = |c: char| c.is_ascii_digit() || c == ':' || c == '.';
    let zone = clock.trim_start_matches(is_clock).replace('Z', "UTC");
    format!("{date} {} {zone}", clock.get(..8).unwrap_or(clock))
}

#[derive(Debug, Clone)]
pub(super) struct When {
    /// The `datetime` attribute.
    pub(super) iso: String,
    /// Date and time in UTC.
    pub(super) exact: String,
    pub(super) relative: String,
}

impl When {
    fn new(at: Timestamp, now: Timestamp, lang: Lang) -> Self {
        let texts = lang.texts();
        let (before, after) = match at > now {
            true => (texts.in_before, texts.in_after),
            false => (texts.ago_before, texts.ago_after),
        };
        // Whole seconds: tenths change too fast to read.
        let relative = match at.as_millis().abs_diff(now.as_millis()) / 1_000 {
            0 => texts.now.to_owned(),
            seconds => {
                format!("{before}{}{after}", duration(seconds * 1_000, lang))
            }
        };
        let iso = at.to_string();
        let exact = iso.replacen('T', " ", 1).replace('Z', " UTC");
        Self { iso, exact, relative }
    }
}

/// For templates, which pass references.
impl Chrome {
    pub(super) fn when(&self, at: &Timestamp) -> When {
        When::new(*at, self.now, self.lang)
    }

    pub(super) fn number(&self, value: &u64) -> String {
        number(*value)
    }

    pub(super) fn duration(&self, millis: &u64) -> String {
        duration(*millis, self.lang)
    }

    pub(super) fn skew(&self, millis: &i64) -> String {
        let sign = match *millis {
            0 => "",
            ..0 => "−",
            _ => "+",
        };
        format!("{sign}{}", self.duration(&millis.unsigned_abs()))
    }

    pub(super) fn rate(&self, value: &f64) -> String {
        rate(*value)
    }

    pub(super) fn p99(&self, quantiles: &Option<Quantiles>) -> String {
        quantiles.map_or_else(|| "–".to_owned(), |quantiles| self.duration(&quantiles.p99_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_durations_read_well() {
        assert_eq!([number(0), number(999), number(1_234_567)], ["0", "999", "1,234,567"]);
        assert_eq!([rate(0.0), rate(0.25), rate(1_234.5)], ["0", "0.2", "1,235"]);
        let durations = [Lang::En, Lang::Zh].map(|lang| duration(200_000, lang));
        assert_eq!(durations, ["3m 20s", "3 分 20 秒"]);
        let now = Timestamp::from_millis(1_700_000_000_000);
        let when = |millis| {
            When::new(Timestamp::from_millis(now.as_millis() + millis), now, Lang::En).relative
        };
        assert_eq!([when(41_000), when(-5_000), when(3)], ["in 41s", "5s ago", "now"]);
        for (time, shown) in [
            ("2027-03-29T02:30:13.656+02:00", "2027-03-29 02:30:13 +02:00"),
            ("2027-03-29T02:30:00-03:30", "2027-03-29 02:30:00 -03:30"),
            ("2027-03-29T00:30:13.656Z", "2027-03-29 00:30:13 UTC"),
        ] {
            assert_eq!(second(time), shown);
        }
    }
}
