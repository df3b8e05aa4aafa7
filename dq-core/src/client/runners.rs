//! The runners that have announced themselves in the store.

use bytes::Bytes;

use crate::backend::Announced;
use crate::model::{RunnerInfo, Timestamp};

/// A runner that has announced itself; a result of [`Dq::runners`](crate::Dq::runners).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegisteredRunner {
    /// The name of the runner.
    pub name: String,
    /// When it last announced itself, by the store's clock.
    pub announced_at: Timestamp,
    /// When it is no longer listed unless it announces itself again, by the store's clock.
    pub valid_until: Timestamp,
    /// What it says of itself.
    pub info: Result<RunnerInfo, UnreadableInfo>,
}

/// What a runner says of itself, in a form that this version does not read: another program or a
/// later version has written it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreadableInfo {
    /// What is in the store.
    pub raw: Bytes,
    /// Why it cannot be read.
    pub error: String,
}

impl From<Announced> for RegisteredRunner {
    fn from(announced: Announced) -> Self {
        let Announced { name, info: raw, at, until } = announced;
        let info = RunnerInfo::decode(&raw).map_err(|error| UnreadableInfo { raw, error });
        Self { name, announced_at: at, valid_until: until, info }
    }
}
