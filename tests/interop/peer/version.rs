//! The Redisson versions under test.

use std::fmt;

/// Each version differs from the previous one in a way that matters to this backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Version {
    /// The legacy member format; the default codec is JBoss Marshalling.
    V3_16_6,
    /// The legacy member format; the default codec is Kryo 5.
    V3_20_1,
    /// The current member format, introduced in 3.21.1.
    V3_23_4,
    /// The newest version this backend supports. Its users choose their own Jackson library.
    V4_7_0,
}

impl Version {
    pub(crate) const ALL: [Self; 4] = [Self::V3_16_6, Self::V3_20_1, Self::V3_23_4, Self::V4_7_0];

    /// Members begin with a random double instead of an id with its length.
    pub(crate) fn has_legacy_members(self) -> bool {
        self < Self::V3_23_4
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V3_16_6 => "3.16.6",
            Self::V3_20_1 => "3.20.1",
            Self::V3_23_4 => "3.23.4",
            Self::V4_7_0 => "4.7.0",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
