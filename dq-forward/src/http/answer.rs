//! What an answer means for the job.

use std::time::Duration;

use dq_core::{HandlerResult, Outcome, Timestamp};
use hyper::StatusCode;
use hyper::header::RETRY_AFTER;

use super::client::Answer;

/// The shortest snooze, so that `Retry-After: 0` is no busy loop.
const MIN_SNOOZE: Duration = Duration::from_secs(1);
/// The longest snooze, so that a receiver cannot postpone a job for ever by one answer.
const MAX_SNOOZE: Duration = Duration::from_secs(86_400);

/// The outcome of a run.
///
/// # Errors
/// For an answer after which a retry may help.
pub(super) fn outcome(answer: &Answer, now: Timestamp) -> HandlerResult {
    let status = answer.status;
    if status.is_success() {
        return Ok(Outcome::Done);
    }
    let may_say_when = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
    if may_say_when.contains(&status)
        && let Some(delay) = retry_after(answer, now)
    {
        return Ok(Outcome::snooze(delay.clamp(MIN_SNOOZE, MAX_SNOOZE)));
    }
    let reason = match answer.excerpt.as_str() {
        "" => format!("answered {status}"),
        excerpt => format!("answered {status}: {excerpt}"),
    };
    let is_temporary = status.is_server_error()
        || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    if is_temporary { Err(reason.into()) } else { Ok(Outcome::dead(reason)) }
}

/// The delay of the header `Retry-After`, in seconds or as a date.
fn retry_after(answer: &Answer, now: Timestamp) -> Option<Duration> {
    let value = answer.headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = Timestamp::from(httpdate::parse_http_date(value).ok()?);
    Some(date.since(now))
}

#[cfg(test)]
mod tests {
    use dq_core::Due;
    use hyper::header::{HeaderMap, HeaderValue};

    use super::*;

    fn of(status: u16, retry_after: Option<&'static str>) -> HandlerResult {
        let mut headers = HeaderMap::new();
        if let Some(value) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(value));
        }
        let status = StatusCode::from_u16(status).unwrap();
        // Sun, 06 Nov 1994 08:49:37 GMT
        let now = Timestamp::from_millis(784_111_777_000);
        outcome(&Answer { status, headers, excerpt: "because".to_owned() }, now)
    }

    #[test]
    fn every_status_has_an_outcome() {
        for status in 200..600 {
            let outcome = of(status, None);
            match status {
                200..300 => assert_eq!(outcome.unwrap(), Outcome::Done, "{status}"),
                408 | 429 | 500.. => {
                    assert!(outcome.unwrap_err().to_string().contains("because"), "{status}");
                }
                _ => assert!(matches!(outcome.unwrap(), Outcome::Dead(_)), "{status}"),
            }
        }
    }

    #[test]
    fn retry_after_snoozes_within_limits() {
        let seconds = |seconds| Outcome::Snooze(Due::After(Duration::from_secs(seconds)));
        for (value, expected) in [
            ("7", 7),
            ("0", 1),
            ("99999999", 86_400),
            ("Sun, 06 Nov 1994 08:50:37 GMT", 60),
            ("Sun, 06 Nov 1994 08:00:00 GMT", 1),
        ] {
            for status in [429, 503] {
                assert_eq!(of(status, Some(value)).unwrap(), seconds(expected), "{value}");
            }
        }
        for value in ["-1", "soon", ""] {
            assert!(of(429, Some(value)).is_err(), "{value}");
        }
        assert!(of(500, Some("7")).is_err(), "only 429 and 503 say when");
        assert!(matches!(of(301, Some("7")), Ok(Outcome::Dead(_))));
    }
}
