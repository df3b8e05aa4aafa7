//! What is known about notifications, and what an operator should do about it.

use dq_core::{Finding, Severity};

/// Whether the server says that our keys expire.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notifications {
    /// A key that expired was heard of.
    Working,
    /// A key that expired was not heard of.
    Off,
    /// As `Off`, and the server refuses to turn them on, with these words.
    Refused(String),
    /// Nobody could tell: the server is not reached, or does not let us listen.
    Unknown,
}

impl Notifications {
    /// What an operator should know of it. Jobs are run in time whatever it is, so none is an error.
    pub(super) fn finding(&self) -> Option<Finding> {
        let (severity, code, what, remedy) = match self {
            Self::Working => return None,
            Self::Off => (
                Severity::Warning,
                "redis-expiry.notifications-off",
                "the server does not say when a key expires: hints by expiry do not come, and jobs go \
                 by timers alone"
                    .to_owned(),
                "set `notify-keyspace-events Ex` at the server, or `configure = true` here",
            ),
            Self::Refused(words) => (
                Severity::Warning,
                "redis-expiry.config-refused",
                format!(
                    "the server does not say when a key expires and refuses to be configured \
                     ({words}): jobs go by timers alone"
                ),
                "set `notify-keyspace-events Ex` where the server is administered, or grant this user \
                 CONFIG GET and CONFIG SET",
            ),
            Self::Unknown => (
                Severity::Info,
                "redis-expiry.notifications-unknown",
                "it is not known whether the server says when a key expires: nothing listens at the \
                 moment, and jobs go by timers alone"
                    .to_owned(),
                "check that the server is reached, and that this user may SET, TOUCH and SUBSCRIBE to \
                 the channel __keyevent@*__:expired",
            ),
        };
        Some(Finding { severity, code, cause: what, remedy: remedy.to_owned() })
    }
}
