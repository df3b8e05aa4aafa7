//! Why a request failed.

use std::fmt;

use dq_core::{Error, ErrorKind, QueueName};

use crate::actor::Role;

/// Result of a request.
pub type Result<T, E = OpsError> = std::result::Result<T, E>;

/// Why a request failed. New kinds may be added in any release.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum OpsError {
    /// The actor's role does not allow the request.
    Forbidden {
        /// The least role that does.
        needs: Role,
        /// The role of the actor.
        has: Role,
    },
    /// There is no such queue or job.
    NotFound {
        /// The queue.
        queue: QueueName,
        /// The id or the key of the job; `None` if the queue is not known.
        job: Option<String>,
    },
    /// There is no such schedule.
    NoSchedule {
        /// The name of the schedule.
        name: String,
    },
    /// The request does not fit the state of the job or the queue, such as the cancellation of a job
    /// that runs.
    Conflict {
        /// What does not fit.
        message: String,
        /// What to do about it.
        remedy: String,
    },
    /// An error of `dq_core`: the client or the store failed, or an argument was refused.
    Store(Error),
}

impl OpsError {
    /// The error for a request that is valid, but does not fit what the store has.
    pub(crate) fn unfit(error: Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidInput => {
                Self::conflict(error.message(), error.remedy_text().unwrap_or_default())
            }
            _ => error.into(),
        }
    }

    pub(crate) fn conflict(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Conflict { message: message.into(), remedy: remedy.into() }
    }

    /// The name of the kind: that of the [`ErrorKind`], or `forbidden`, `not found` or `conflict`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Forbidden { .. } => "forbidden",
            Self::NotFound { .. } | Self::NoSchedule { .. } => "not found",
            Self::Conflict { .. } => "conflict",
            Self::Store(error) => error.kind().as_str(),
        }
    }

    /// The kind of an error of `dq_core`; `None` for the other variants.
    #[must_use]
    pub fn store_kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Store(error) => Some(error.kind()),
            _ => None,
        }
    }

    /// What went wrong, without kind and remedy.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Forbidden { needs, has } => {
                format!("this needs the role {needs}, and yours is {has}")
            }
            Self::NotFound { queue, job: Some(job) } => {
                format!("queue {queue} has no job {job}")
            }
            Self::NotFound { queue, job: None } => format!("there is no queue {queue}"),
            Self::NoSchedule { name } => format!("there is no schedule {name}"),
            Self::Conflict { message, .. } => message.clone(),
            Self::Store(error) => error.message().to_owned(),
        }
    }

    /// What to do about it, if known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Forbidden { .. } => Some("ask an administrator of this service".to_owned()),
            Self::NotFound { job: Some(_), .. } => Some(
                "it may have ended: ended jobs are found if the program that ended them keeps a history (the setting `history`); by key, among the latest 5,000 of the queue"
                    .to_owned(),
            ),
            Self::NotFound { job: None, .. } => {
                let remedy = "check the spelling: a queue appears with its first job or runner, or if it is \
                     paused by `dq pause --create` (`:create-paused` in the HTTP API)";
                Some(remedy.to_owned())
            }
            Self::NoSchedule { .. } => {
                Some("the list of schedules has all names; check the spelling".to_owned())
            }
            Self::Conflict { remedy, .. } => Some(remedy.clone()).filter(|text| !text.is_empty()),
            Self::Store(error) => error.remedy_text().map(str::to_owned),
        }
    }
}

impl fmt::Display for OpsError {
    /// Prints one line: `kind: message (remedy)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Store(error) = self {
            return error.fmt(f);
        }
        write!(f, "{}: {}", self.kind(), self.message())?;
        if let Some(remedy) = self.remedy() {
            write!(f, " ({remedy})")?;
        }
        Ok(())
    }
}

impl std::error::Error for OpsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => std::error::Error::source(error),
            _ => None,
        }
    }
}

impl From<Error> for OpsError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}
