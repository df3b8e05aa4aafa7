//! Why a job is dead, and message truncation.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of a [`DeadReason`]. New kinds may be added in any release.
// Append new kinds at the end and to `from_name`. Snapshots in RabbitMQ's log store kinds by
// number, settlements by name. An older process reads an unknown name as `Quarantined`, so its
// replica would differ: a new kind also needs a new type of log entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeadKind {
    /// The last allowed attempt failed, or an escalation's last step asked for another one.
    Exhausted,
    /// The handler rejected the job, because retrying would not help.
    Rejected,
    /// The payload did not decode.
    Undecodable,
    /// Too many leases expired in a row; the job may crash its runners.
    Lost,
    /// The store could not read the entry.
    Quarantined,
    /// The job was late by more than its queue's late policy allows.
    Late,
}

impl DeadKind {
    /// Returns whether the death counts in `attempts`: the handler ran and gave the reason.
    pub const fn is_failed_attempt(self) -> bool {
        match self {
            Self::Exhausted | Self::Rejected => true,
            Self::Undecodable | Self::Lost | Self::Quarantined | Self::Late => false,
        }
    }

    /// Returns the stored name of the kind.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Rejected => "rejected",
            Self::Undecodable => "undecodable",
            Self::Lost => "lost",
            Self::Late => "late",
            Self::Quarantined => "quarantined",
        }
    }

    /// Returns the kind with this stored name; [`Self::Quarantined`] if unknown, such as from a
    /// newer version.
    pub fn from_name(name: &str) -> Self {
        [Self::Exhausted, Self::Rejected, Self::Undecodable, Self::Lost, Self::Late]
            .into_iter()
            .find(|kind| kind.as_str() == name)
            .unwrap_or(Self::Quarantined)
    }
}

/// The reason why a job is dead: a kind and a message for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadReason {
    /// The kind.
    pub kind: DeadKind,
    /// The last error or the handler's text; at most [`DeadReason::MAX_BYTES`] bytes.
    pub message: String,
}

impl DeadReason {
    /// Maximum message length in bytes, so that an error that quotes a document does not fill the
    /// store.
    pub const MAX_BYTES: usize = 2_048;

    /// Creates a reason and truncates the message to [`Self::MAX_BYTES`].
    pub fn new(kind: DeadKind, message: impl Into<String>) -> Self {
        Self { kind, message: truncate_message(message.into()) }
    }
}

/// Truncates a message to [`DeadReason::MAX_BYTES`] bytes at a character boundary.
pub fn truncate_message(mut message: String) -> String {
    if message.len() > DeadReason::MAX_BYTES {
        let mut end = DeadReason::MAX_BYTES - '…'.len_utf8();
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push('…');
    }
    message
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.as_str(), self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_truncated_at_a_character_boundary() {
        let reason = DeadReason::new(DeadKind::Rejected, "错误".repeat(2_000));
        assert!(reason.message.len() <= DeadReason::MAX_BYTES);
        assert!(reason.message.ends_with('…'));
    }
}
