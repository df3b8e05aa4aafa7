//! The state of keyspace notifications, and its finding for `check`.

use dq_core::{Finding, Severity};

/// Whether the server notifies this process when keys expire.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notifications {
    /// The probe key's event arrived.
    Working,
    /// The probe key's event did not arrive: notifications are off.
    Off,
    /// As [`Off`](Self::Off), and the server refused to turn notifications on, with this message.
    Refused(String),
    /// Not probed yet, the server is unreachable, or it refuses the subscription or the probe.
    Unknown,
}

impl Notifications {
    /// `None` if notifications work. Never an error, because jobs run in time in every state.
    pub(super) fn finding(&self) -> Option<Finding> {
        let (severity, code, what, remedy) = match self {
            Self::Working => return None,
            Self::Off => (
                Severity::Warning,
                "redis-expiry.notifications-off",
                "the server does not send events for expired keys: jobs are started by timers alone"
                    .to_owned(),
                "set `notify-keyspace-events Ex` at the server, or `configure = true` in the settings of this \
                 backend",
            ),
            Self::Refused(message) => (
                Severity::Warning,
                "redis-expiry.config-refused",
                format!(
                    "the server does not send events for expired keys and refuses to be configured \
                     ({message}): jobs are started by timers alone"
                ),
                "set `notify-keyspace-events Ex` where the server is administered, or grant this user \
                 CONFIG GET and CONFIG SET",
            ),
            Self::Unknown => (
                Severity::Info,
                "redis-expiry.notifications-unknown",
                "it is not known whether the server sends events for expired keys, since no connection \
                 could subscribe to them or a key that was to test it could not be set: jobs are \
                 started by timers alone"
                    .to_owned(),
                "check that the server is reachable, and that this user may run SET, TOUCH and SUBSCRIBE, \
                 write keys that match `{<prefix>}:*` (the braces are part of the name) with this backend's prefix, and receive the channel __keyevent@*__:expired",
            ),
        };
        Some(Finding::new(severity, code, what, remedy))
    }
}
