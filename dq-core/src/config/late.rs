//! A queue's setting `late`: `{ after = "5m", then = "skip" }`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use super::duration;
use super::setting_error::SettingError;
use crate::error::{Error, Result};
use crate::model::QueueName;

/// A policy for jobs that start late, for example after a night's outage.
///
/// A job is late if it starts more than [`after`](Self::after) after its due time. A retry has its
/// own due time.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LatePolicy {
    /// How late a job may start; longer than zero.
    #[serde(with = "duration")]
    pub after: Duration,
    /// The action for a later job.
    pub then: LateAction,
}

impl LatePolicy {
    /// Creates a policy.
    pub const fn new(after: Duration, then: LateAction) -> Self {
        Self { after, then }
    }

    pub(super) fn validate(&self) -> Result<(), SettingError> {
        if self.after.is_zero() {
            let problem = "is 0, and every job starts a little late; write at least \"1s\"";
            return Err(SettingError::new("late.after", problem));
        }
        match &self.then {
            LateAction::Queue(queue) if queue.is_reserved() => {
                Err(SettingError::new("late.then", format!("names the reserved queue {queue}")))
            }
            _ => Ok(()),
        }
    }
}

/// An action for late jobs. In settings: `"run"`, `"skip"`, `"dead"` or `"queue:NAME"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
#[non_exhaustive]
pub enum LateAction {
    /// The job runs; observers are notified.
    Run,
    /// The job ends as skipped, with the reason.
    Skip,
    /// The job is dead, with the reason, until an operator replays it.
    Dead,
    /// The job moves to this queue, where it is due at once under another id.
    Queue(QueueName),
}

impl fmt::Display for LateAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run => f.write_str("run"),
            Self::Skip => f.write_str("skip"),
            Self::Dead => f.write_str("dead"),
            Self::Queue(queue) => write!(f, "queue:{queue}"),
        }
    }
}

impl FromStr for LateAction {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "run" => Ok(Self::Run),
            "skip" => Ok(Self::Skip),
            "dead" => Ok(Self::Dead),
            _ => match text.strip_prefix("queue:") {
                Some(queue) => QueueName::new(queue).map(Self::Queue),
                None => Err(Error::invalid(format!("{text:?} is not an action for late jobs"))
                    .remedy("write \"run\", \"skip\", \"dead\" or \"queue:NAME\"")),
            },
        }
    }
}

impl TryFrom<String> for LateAction {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}
