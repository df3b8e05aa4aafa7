//! Who makes a request, and with which role.

use std::fmt;
use std::str::FromStr;

use dq_core::{Error, QueueName};
use serde::{Deserialize, Serialize};

/// An [`Actor`]'s role. Each role from viewer on includes the ones before it, except worker.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// Claims, renews and settles jobs of its own queues, and sees nothing else.
    Worker,
    /// Sees queues, jobs and runners, but neither payloads nor headers.
    Viewer,
    /// Also sees payloads and headers.
    Reader,
    /// Changes jobs, queues and schedules, and runs simulations.
    Operator,
    /// Purges queues, imports from other stores, and reads the audit.
    Admin,
}

impl Role {
    /// All roles, lowest first.
    pub const ALL: &[Self] =
        &[Self::Worker, Self::Viewer, Self::Reader, Self::Operator, Self::Admin];

    /// Returns the role name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Viewer => "viewer",
            Self::Reader => "reader",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(text: &str) -> dq_core::Result<Self> {
        Self::ALL.iter().copied().find(|role| role.as_str() == text).ok_or_else(|| {
            Error::invalid(format!("{text:?} is not a role"))
                .remedy("the roles are worker, viewer, reader, operator and admin")
        })
    }
}

/// A person or program that makes requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    name: String,
    role: Role,
    /// A worker's queues.
    queues: Vec<QueueName>,
}

impl Actor {
    /// Maximum name length in characters; longer names are cut.
    pub const MAX_NAME: usize = 128;

    /// Creates an actor.
    ///
    /// The name is for the audit. Control characters are replaced, and it is cut at
    /// [`Self::MAX_NAME`] characters.
    #[must_use]
    pub fn new(name: impl AsRef<str>, role: Role) -> Self {
        Self { name: plain(name.as_ref(), Self::MAX_NAME), role, queues: Vec::new() }
    }

    /// Creates a worker, which may claim from these queues only.
    #[must_use]
    pub fn worker(name: impl AsRef<str>, queues: impl IntoIterator<Item = QueueName>) -> Self {
        Self { queues: queues.into_iter().collect(), ..Self::new(name, Role::Worker) }
    }

    /// Returns whether the actor may claim and settle jobs: workers in their own queues, operators
    /// and admins in all.
    #[must_use]
    pub fn may_work_on(&self, queue: &QueueName) -> bool {
        match self.role {
            Role::Worker => self.queues.contains(queue),
            role => role >= Role::Operator,
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }
}

/// Cuts a caller's text and replaces its control characters by U+FFFD, so that no caller can fill
/// the log, forge a line in it or control a terminal.
pub(crate) fn plain(text: &str, max_chars: usize) -> String {
    let plain = |character: char| if character.is_control() { '\u{fffd}' } else { character };
    text.chars().take(max_chars).map(plain).collect()
}
