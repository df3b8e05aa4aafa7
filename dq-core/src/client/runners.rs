//! Announced runners.

use bytes::Bytes;

use crate::backend::Announced;
use crate::model::{RunnerInfo, Timestamp};

/// An announced runner; a result of [`Dq::runners`](crate::Dq::runners).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegisteredRunner {
    /// The runner's name.
    pub name: String,
    /// When it last announced itself, by the store's clock.
    pub announced_at: Timestamp,
    /// When it disappears from the list unless it announces itself again, by the store's clock.
    pub valid_until: Timestamp,
    /// The runner's details.
    pub info: Result<RunnerInfo, UnreadableInfo>,
}

/// Runner details that this version cannot read.
///
/// Another program or a later version wrote them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreadableInfo {
    /// The stored bytes.
    pub raw: Bytes,
    /// Why they cannot be read.
    pub error: String,
}

impl From<Announced> for RegisteredRunner {
    fn from(announced: Announced) -> Self {
        let Announced { name, info: raw, at, until } = announced;
        let info = RunnerInfo::decode(&raw).map_err(|error| UnreadableInfo { raw, error });
        Self { name, announced_at: at, valid_until: until, info }
    }
}
