//! The reason for which a job is dead, and the length of texts that stores keep.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of a [`DeadReason`]. New kinds may be added in any release.
// New kinds are added at the end, and to `from_name`: snapshots in RabbitMQ's log have their numbers.
// Settlements have their names. An older process reads a name that it does not know as `Quarantined`,
// so its replica would differ: a new kind of death needs a new kind of entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeadKind {
    /// The last allowed attempt failed, or the last step of an escalation asked for another one.
    Exhausted,
    /// The handler rejected the job: retrying would not help.
    Rejected,
    /// The payload could not be decoded.
    Undecodable,
    /// Too many leases in a row expired: the job may crash its runners.
    Lost,
    /// The store found an entry that it could not read.
    Quarantined,
    /// The job was to start later after its due time than the late policy of its queue allows.
    Late,
}

impl DeadKind {
    /// Whether the death is a failed attempt, which `attempts` of the dead job counts: the handler ran
    /// and gave the reason.
    #[must_use]
    pub const fn is_failed_attempt(self) -> bool {
        match self {
            Self::Exhausted | Self::Rejected => true,
            Self::Undecodable | Self::Lost | Self::Quarantined | Self::Late => false,
        }
    }

    /// The name under which stores keep the kind.
    #[must_use]
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

    /// The kind with the name that a store kept; [`Self::Quarantined`] if the name is unknown, such
    /// as one written by a newer version.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        // All kinds but `Quarantined`.
        [Self::Exhausted, Self::Rejected, Self::Undecodable, Self::Lost, Self::Late]
            .into_iter()
            .find(|kind| kind.as_str() == name)
            .unwrap_or(Self::Quarantined)
    }
}

/// Why a job is dead: a kind and a message for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadReason {
    /// The kind of reason.
    pub kind: DeadKind,
    /// The last error, or the text that the handler gave; at most [`DeadReason::MAX_BYTES`] bytes.
    pub message: String,
}

impl DeadReason {
    /// Maximum length of a message in bytes. Longer ones are truncated, so that an error that
    /// quotes a whole document does not fill the store.
    pub const MAX_BYTES: usize = 2_048;

    /// Creates a reason; the message is truncated to [`Self::MAX_BYTES`].
    pub fn new(kind: DeadKind, message: impl Into<String>) -> Self {
        Self { kind, message: truncate_message(message.into()) }
    }
}

/// Truncates a text for people to [`DeadReason::MAX_BYTES`] bytes, at a character boundary.
#[must_use]
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
