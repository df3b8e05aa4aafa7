//! Why a job is dead.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The class of a [`DeadReason`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeadKind {
    /// Every attempt failed.
    Exhausted,
    /// The handler said that no retry will help.
    Rejected,
    /// The payload does not decode.
    Undecodable,
    /// Too many leases in a row lapsed: the job may be what crashes its runners.
    Lost,
    /// The store could not make sense of the entry.
    Quarantined,
}

impl DeadKind {
    /// The kind as the word that stores keep.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Rejected => "rejected",
            Self::Undecodable => "undecodable",
            Self::Lost => "lost",
            Self::Quarantined => "quarantined",
        }
    }

    /// The kind of a word that a store kept; an unknown word, from a newer version, reads as
    /// [`Self::Quarantined`].
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        [Self::Exhausted, Self::Rejected, Self::Undecodable, Self::Lost]
            .into_iter()
            .find(|kind| kind.as_str() == word)
            .unwrap_or(Self::Quarantined)
    }
}

/// Why a job is dead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadReason {
    /// The class.
    pub kind: DeadKind,
    /// For people: the last error, or the handler's word; at most [`DeadReason::MAX_BYTES`].
    pub message: String,
}

impl DeadReason {
    /// Longer messages are cut, so that an error with a whole document in it does not fill the
    /// store.
    pub const MAX_BYTES: usize = 2_048;

    /// A reason with its message cut to [`Self::MAX_BYTES`].
    pub fn new(kind: DeadKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > Self::MAX_BYTES {
            let mut end = Self::MAX_BYTES - '…'.len_utf8();
            while !message.is_char_boundary(end) {
                end -= 1;
            }
            message.truncate(end);
            message.push('…');
        }
        Self { kind, message }
    }
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
    fn long_messages_are_cut_at_a_character_boundary() {
        let reason = DeadReason::new(DeadKind::Rejected, "错误".repeat(2_000));
        assert!(reason.message.len() <= DeadReason::MAX_BYTES);
        assert!(reason.message.ends_with('…'));
    }
}
