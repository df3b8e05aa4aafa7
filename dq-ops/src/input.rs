//! Parsers for times, due times, queue names and job targets.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dq_core::{Due, Error, JobId, JobKey, QueueName, Result, ScheduleSpec, Target, Timestamp};

/// Parses a point in time: RFC 3339 such as `2027-01-31T10:00:00Z`, or Unix milliseconds with `ms`.
///
/// # Errors
/// `InvalidInput` if the text is neither.
pub fn parse_timestamp(text: &str) -> Result<Timestamp> {
    let text = text.trim();
    if let Some(millis) = text.strip_suffix("ms").and_then(|millis| millis.parse().ok()) {
        return Ok(Timestamp::from_millis(millis));
    }
    // jiff ends a day before the year 10000.
    let last_day = || humantime::parse_rfc3339(text).ok();
    match text.parse::<jiff::Timestamp>().map(SystemTime::from).ok().or_else(last_day) {
        // A `Timestamp` made from a `SystemTime` rounds up, so that no job is due early.
        Some(time) => Ok(time.into()),
        None => Err(Error::invalid(format!("{:?} is not a time", head(text)))
            .remedy("write it like 2027-01-31T10:00:00Z or 2027-01-31T18:00:00+08:00")),
    }
}

/// Parses a due time: `now`, a delay such as `15m` or `1h 30m`, or a point in time.
///
/// # Errors
/// `InvalidInput` if the text is invalid.
pub fn parse_due(text: &str) -> Result<Due> {
    let text = text.trim();
    let delay = text.strip_prefix('+').unwrap_or(text).trim_start();
    if text == "now" {
        return Ok(Due::NOW);
    }
    if let Ok(delay) = humantime::parse_duration(delay) {
        return Ok(Due::After(delay));
    }
    parse_timestamp(text).map(Due::At).map_err(|_| {
        Error::invalid(format!("{:?} is neither a delay nor a time", head(text)))
            .remedy("write a delay like 15m or 1h 30m, a time like 2027-01-31T10:00:00Z, or now")
    })
}

/// Parses a duration such as `15m`.
///
/// # Errors
/// `InvalidInput` if the text is invalid.
pub fn parse_duration(text: &str) -> Result<Duration> {
    humantime::parse_duration(text.trim()).map_err(|_| {
        Error::invalid(format!("{:?} is not a duration", head(text)))
            .remedy("write it like 15m or 7d")
    })
}

/// Parses a queue name from a URL.
///
/// Names that proxies would change, for example with a slash, can be written as `base64:` and the
/// name in URL-safe Base64.
///
/// # Errors
/// `InvalidInput` if the name is invalid.
pub fn parse_queue(text: &str) -> Result<QueueName> {
    QueueName::new(decode_name(text)?)
}

/// Parses a schedule name from a URL, as [`parse_queue`] does.
///
/// # Errors
/// `InvalidInput` if the name is invalid.
pub fn parse_schedule(text: &str) -> Result<String> {
    let name = decode_name(text)?;
    ScheduleSpec::check_name(&name)?;
    Ok(name)
}

/// Decodes a name that begins with `base64:`, and returns any other name as it is.
fn decode_name(text: &str) -> Result<String> {
    match text.strip_prefix("base64:") {
        Some(encoded) => decode_base64(encoded),
        None => Ok(text.to_owned()),
    }
}

/// Parses a job target: an id, `key:` and a key, or `key-base64:` and a key in URL-safe Base64.
///
/// # Errors
/// `InvalidInput` if the id or the key is invalid.
pub fn parse_target(text: &str) -> Result<Target> {
    if let Some(encoded) = text.strip_prefix("key-base64:") {
        return Ok(Target::Key(JobKey::new(decode_base64(encoded)?)?));
    }
    if let Some(key) = text.strip_prefix("key:") {
        return Ok(Target::Key(JobKey::new(key)?));
    }
    text.parse::<JobId>().map(Target::Id).map_err(|_| {
        Error::invalid(format!("{:?} is not a job id", head(text)))
            .remedy("for a key, write key: before it")
    })
}

/// Decodes a name in URL-safe Base64, with or without padding.
fn decode_base64(text: &str) -> Result<String> {
    let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('='));
    bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(|| {
        Error::invalid(format!("{:?} is not URL-safe Base64 of a text", head(text)))
            .remedy("encode the UTF-8 text with - and _ in place of + and /")
    })
}

/// Cuts a text for an error message, which must stay short.
fn head(text: &str) -> String {
    let head: String = text.chars().take(48).collect();
    if head.len() < text.len() { format!("{head}…") } else { head }
}

#[cfg(test)]
mod tests {
    use dq_core::DurationExt;

    use super::*;

    #[test]
    fn times_are_rfc_3339_or_milliseconds() {
        for (text, millis) in [
            ("2027-01-31T10:00:00Z", 1_801_389_600_000),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000),
            ("2027-01-31T18:00:00+08:00", 1_801_389_600_000),
            ("2027-01-31T04:30:00.0001-05:30", 1_801_389_600_001),
            ("1969-12-31T23:59:59.997z", -3),
            ("-3ms", -3),
            ("0001-01-01t00:00:00Z", -62_135_596_800_000),
            ("2016-12-31T23:59:60Z", 1_483_228_799_000),
        ] {
            let time = parse_timestamp(text).unwrap();
            assert_eq!(time.as_millis(), millis, "{text}");
            assert_eq!(parse_timestamp(&time.to_string()).unwrap(), time, "{time}");
        }
        for text in ["", "Z", "10:00", "2027-01-31", "2027-01-31T10:00:00", "1900-02-29T00:00:00Z"]
        {
            assert!(parse_timestamp(text).is_err(), "{text}");
        }
    }

    #[test]
    fn due_times_are_delays_or_points_in_time() {
        assert_eq!(parse_due("now").unwrap(), Due::NOW);
        assert_eq!(parse_due("+15m").unwrap(), Due::After(15.minutes()));
        assert_eq!(parse_due("1h 30m").unwrap(), Due::After(90.minutes()));
        assert!(matches!(parse_due("2027-01-31T10:00:00Z").unwrap(), Due::At(_)));
        assert!(parse_due("tomorrow").is_err());
        assert!(parse_due(&"9".repeat(10_000)).unwrap_err().message().len() < 200);
    }

    #[test]
    fn names_that_proxies_would_change_can_be_encoded() {
        let name = "a/../b?c#d";
        let encoded = format!("base64:{}", URL_SAFE_NO_PAD.encode(name));
        assert_eq!(parse_queue(&encoded).unwrap().as_str(), name);
        assert_eq!(parse_queue(name).unwrap().as_str(), name);
        assert_eq!(parse_schedule(&encoded).unwrap(), name);
        assert!(parse_schedule("").is_err() && parse_schedule("base64:!").is_err());
        let key = format!("key-base64:{}", URL_SAFE_NO_PAD.encode("a/b"));
        assert_eq!(parse_target(&key).unwrap(), parse_target("key:a/b").unwrap());
        assert!(parse_target("order-1").is_err());
    }
}
