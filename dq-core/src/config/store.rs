//! Settings shared by several stores.

use std::borrow::Cow;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

const RESPONSE_TIMEOUTS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(86_400);

/// Creates the `Config` error for an unusable store setting, with the operation `connect`.
pub fn invalid_setting(
    what: impl Into<Cow<'static, str>>,
    remedy: impl Into<Cow<'static, str>>,
) -> Error {
    Error::new(ErrorKind::Config, what).remedy(remedy).operation("connect")
}

/// Checks a store's `response_timeout`, which defaults to `5s`.
///
/// # Errors
/// `Config` unless it is between 10 ms and a day.
pub fn check_response_timeout(response_timeout: Duration) -> Result<()> {
    if RESPONSE_TIMEOUTS.contains(&response_timeout) {
        return Ok(());
    }
    Err(invalid_setting(
        format!("the field `response_timeout` is {response_timeout:?}"),
        "set it between 10ms and 1 day; it is 5s unless set",
    ))
}
