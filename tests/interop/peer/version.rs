//! The versions of Redisson in the tests.

use std::fmt;

/// A version of Redisson. Each is the first one in the tests with some change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Version {
    /// The old member format; the default codec is JBoss Marshalling.
    V3_16_6,
    /// The old member format; the default codec is Kryo 5.
    V3_20_1,
    /// The new member format, from 3.21.1 on.
    V3_23_4,
    /// The newest.
    V4_7_0,
}

impl Version {
    /// All, oldest first.
    pub(crate) const ALL: [Self; 4] = [Self::V3_16_6, Self::V3_20_1, Self::V3_23_4, Self::V4_7_0];

    /// Whether members begin with a random double instead of an id with its length.
    pub(crate) fn has_old_members(self) -> bool {
        self < Self::V3_23_4
    }

    /// The version number in Maven.
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
