//! Why a request failed.

use std::fmt;

use dq_core::{Error, ErrorKind, QueueName};

use crate::actor::Role;

/// Result of a request.
pub type Result<T, E = OpsError> = std::result::Result<T, E>;

/// Why a request failed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum OpsError {
    /// The actor's role does not allow the request.
    Forbidden {
        /// The lowest role that allows it.
        needs: Role,
        /// The actor's role.
        has: Role,
    },
    /// The worker's queues do not include this one.
    ForeignQueue {
        /// The queue.
        queue: QueueName,
    },
    /// There is no such queue or job.
    NotFound {
        /// The queue.
        queue: QueueName,
        /// The job id or key; `None` if the queue is unknown.
        job: Option<String>,
    },
    /// There is no such queue to pause; its name may be misspelt.
    NothingToPause {
        /// The queue.
        queue: QueueName,
    },
    /// There is no such schedule.
    NoSchedule {
        /// The schedule name.
        name: String,
    },
    /// The request does not fit the job's or queue's state, such as cancelling a running job.
    Conflict {
        /// The conflict.
        message: String,
        /// How to resolve it.
        remedy: String,
    },
    /// The client or the store failed, or rejected an argument.
    Store(Error),
}

impl OpsError {
    /// Turns invalid input into a conflict: the request is valid, but the store's state rejects it.
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

    /// Returns the kind's name: the [`ErrorKind`]'s, or `forbidden`, `not found` or `conflict`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Forbidden { .. } | Self::ForeignQueue { .. } => "forbidden",
            Self::NotFound { .. } | Self::NothingToPause { .. } | Self::NoSchedule { .. } => {
                "not found"
            }
            Self::Conflict { .. } => "conflict",
            Self::Store(error) => error.kind().as_str(),
        }
    }

    /// Returns the store's error kind; `None` for the other variants.
    #[must_use]
    pub fn store_kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Store(error) => Some(error.kind()),
            _ => None,
        }
    }

    /// Returns the message without kind and remedy.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Forbidden { needs, has } => {
                format!("this needs the role {needs}, and yours is {has}")
            }
            Self::ForeignQueue { queue } => format!("queue {queue} is not among your queues"),
            Self::NotFound { queue, job: Some(job) } => {
                format!("queue {queue} has no job {job}")
            }
            Self::NotFound { queue, job: None } | Self::NothingToPause { queue } => {
                format!("there is no queue {queue}")
            }
            Self::NoSchedule { name } => format!("there is no schedule {name}"),
            Self::Conflict { message, .. } => message.clone(),
            Self::Store(error) => error.message().to_owned(),
        }
    }

    /// Returns the remedy, if known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Forbidden { needs, .. } => {
                Some(format!("log in with the role {needs}, or use a token that has it"))
            }
            Self::ForeignQueue { .. } => {
                Some("add it to the `queues` of your token, in `[serve.tokens.…]`".to_owned())
            }
            Self::NotFound { job: Some(_), .. } => Some(
                "it may have ended: ended jobs are found if the program that ended them keeps a history (the setting `history`); by key, among the latest 5,000 of the queue"
                    .to_owned(),
            ),
            Self::NotFound { job: None, .. } => {
                let remedy =
                    "check the spelling: a queue appears with its first job or its first runner";
                Some(remedy.to_owned())
            }
            Self::NothingToPause { .. } => {
                let remedy = "check the spelling; to pause a queue before its first job and its first runner, \
                     use `dq pause --create` (`:create-paused` in the HTTP API)";
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
