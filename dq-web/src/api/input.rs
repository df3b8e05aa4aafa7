//! Address parts that several requests share.

use std::time::Duration;

use dq_core::{QueueName, Target};
use dq_ops::{parse_duration, parse_queue, parse_target};

use crate::problem::{Problem, Result};

pub(crate) fn queue_of(segment: &str) -> Result<QueueName> {
    Ok(parse_queue(segment)?)
}

pub(crate) fn job_of(segment: &str) -> Result<Target> {
    Ok(parse_target(segment)?)
}

/// Parses the window; a day by default.
pub(crate) fn window_of(text: Option<&str>) -> Result<Duration> {
    let window = text.map(parse_duration).transpose()?;
    Ok(window.unwrap_or(Duration::from_secs(86_400)))
}

/// Splits a segment such as `MAIL:pause` at its last colon.
pub(crate) fn split_action(segment: &str) -> (&str, &str) {
    segment.rsplit_once(':').unwrap_or((segment, ""))
}

pub(crate) fn unknown_action(action: &str, known: &[impl AsRef<str>]) -> Problem {
    let action: String = action.chars().take(32).collect();
    let known: Vec<_> = known.iter().map(AsRef::as_ref).collect();
    Problem::bad_request(format!("there is no action {action:?}"))
        .remedy(format!("the actions are {}", known.join(", ")))
}
