//! Maps an HTTP answer to an outcome.

use std::time::Duration;

use dq_core::{HandlerResult, Outcome, Result, Timestamp};
use reqwest::StatusCode;
use reqwest::header::RETRY_AFTER;

use super::client::Answer;
use crate::error::invalid_setting;

/// The statuses that can mark a job dead. A redirect is a failure because it is not followed.
const FAILURES: std::ops::Range<u16> = 300..600;

/// The longest delay that a receiver can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(86_400);

/// Returns the statuses that mark a job dead: the configured ones, and 410, by which Standard
/// Webhooks means that the receiver is gone for good. `Config` if a status is not a failure.
pub(super) fn dead_on(statuses: &[u16]) -> Result<Vec<StatusCode>> {
    let failure = |status: &u16| match StatusCode::from_u16(*status) {
        Ok(code) if FAILURES.contains(status) => Ok(code),
        _ => Err(invalid_setting(
            format!("`dead_on` has {status}, which is no status of a failure"),
            "list statuses from 300 to 599, such as [400, 422]",
        )),
    };
    statuses.iter().map(failure).chain([Ok(StatusCode::GONE)]).collect()
}

/// Returns a job's outcome; an error is retried after the queue's backoff.
pub(super) fn outcome(dead_on: &[StatusCode], answer: &Answer, now: Timestamp) -> HandlerResult {
    let status = answer.status;
    if status.is_success() {
        return Ok(Outcome::Done);
    }
    let reason = match answer.excerpt.as_str() {
        "" => format!("answered {status}"),
        excerpt => format!("answered {status}: {excerpt}"),
    };
    if dead_on.contains(&status) {
        return Ok(Outcome::dead(reason));
    }
    let may_say_when = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
    if may_say_when.contains(&status)
        && let Some(delay) = retry_after(answer, now)
    {
        return Ok(Outcome::retry_after(delay.min(MAX_RETRY_AFTER), reason));
    }
    Err(reason.into())
}

/// Reads `Retry-After`, in seconds or as a date.
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
    use reqwest::header::{HeaderMap, HeaderValue};

    use super::*;

    fn outcome_of(status: u16, retry_after: Option<&'static str>, dead: &[u16]) -> HandlerResult {
        let mut headers = HeaderMap::new();
        if let Some(value) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(value));
        }
        let status = StatusCode::from_u16(status).unwrap();
        // Sun, 06 Nov 1994 08:49:37 GMT
        let now = Timestamp::from_millis(784_111_777_000);
        let answer = Answer { status, headers, excerpt: "because".to_owned() };
        outcome(&dead_on(dead).unwrap(), &answer, now)
    }

    #[test]
    fn all_failures_are_retried_but_410_and_those_of_the_settings() {
        for dead in [&[][..], &[400, 422, 503]] {
            for status in 200..600 {
                let outcome = outcome_of(status, None, dead);
                match status {
                    200..300 => assert_eq!(outcome.unwrap(), Outcome::Done, "{status}"),
                    _ if status == 410 || dead.contains(&status) => {
                        assert!(matches!(outcome.unwrap(), Outcome::Dead(_)), "{status}");
                    }
                    _ => {
                        assert!(outcome.unwrap_err().to_string().contains("because"), "{status}");
                    }
                }
            }
        }
        for wrong in [0, 99, 101, 204, 600] {
            let error = dead_on(&[422, wrong]).unwrap_err().to_string();
            assert!(error.contains(&format!("`dead_on` has {wrong},")), "{error}");
        }
    }

    #[test]
    fn retry_after_delays_the_retry_within_limits() {
        for (value, expected) in [
            ("7", 7),
            ("0", 0),
            ("99999999", 86_400),
            ("Sun, 06 Nov 1994 08:50:37 GMT", 60),
            ("Sun, 06 Nov 1994 08:00:00 GMT", 0),
        ] {
            for status in [429, 503] {
                let outcome = outcome_of(status, Some(value), &[]).unwrap();
                let Outcome::RetryAfter(delay, reason) = outcome else { panic!("{outcome:?}") };
                assert_eq!(delay, Duration::from_secs(expected), "{value}");
                assert!(reason.starts_with(&format!("answered {status}")), "{reason}");
            }
        }
        for value in ["-1", "soon", ""] {
            assert!(outcome_of(429, Some(value), &[]).is_err(), "{value}");
        }
        assert!(outcome_of(500, Some("7"), &[]).is_err(), "only 429 and 503 say when");
        assert!(matches!(outcome_of(429, Some("7"), &[429]), Ok(Outcome::Dead(_))));
    }
}
