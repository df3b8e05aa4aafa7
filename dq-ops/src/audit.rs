//! The audit: every write with its actor and result.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use dq_core::Timestamp;
use dq_core::sync::lock;
use serde::{Deserialize, Serialize};

use crate::actor::{Actor, Role, plain};
use crate::error::Result;
use crate::text;

/// An attempted write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct AuditEntry {
    /// The start time, by this process's clock.
    #[serde(with = "text")]
    pub at: Timestamp,
    /// The actor's name.
    pub actor: String,
    /// The actor's role.
    pub role: Role,
    /// The action, such as `cancel`.
    pub action: String,
    /// The queue. It is empty if the requested name is invalid, or the schedule does not exist or
    /// cannot be read.
    pub queue: String,
    /// The job, filter or schedule, cut at 512 characters, without control characters. `None` for
    /// actions on a whole queue, and for a new job without a key.
    pub target: Option<String>,
    /// The result.
    pub outcome: AuditOutcome,
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "result", rename_all = "snake_case")]
#[non_exhaustive]
pub enum AuditOutcome {
    /// It took effect.
    Ok {
        /// Changed jobs, queues or schedules. Repeating a request with an idempotency key also
        /// counts 1 while its job is stored.
        changed: u64,
    },
    /// It was rejected or failed. A bulk change may have changed some jobs before, and a write with
    /// an unknown outcome may have taken effect.
    Failed {
        /// The error, cut at 512 characters, without control characters.
        error: String,
    },
    /// The caller went away before the result was known. Completed store calls took effect; the
    /// call in progress may have.
    Interrupted,
}

#[derive(Clone, Default)]
pub(crate) struct Audit {
    shared: Arc<Shared>,
}

type Sink = Box<dyn Fn(&AuditEntry) + Send + Sync>;

#[derive(Default)]
struct Shared {
    // A blocking mutex suffices: it is held for microseconds and never across an await.
    last: Mutex<VecDeque<AuditEntry>>,
    sink: Option<Sink>,
}

impl Audit {
    pub(crate) const KEPT: usize = 1_000;

    /// Maximum target and error length in characters; callers may send unchecked text.
    const MAX_TEXT: usize = 512;

    pub(crate) fn with_sink(sink: impl Fn(&AuditEntry) + Send + Sync + 'static) -> Self {
        let (last, sink): (_, Sink) = (Mutex::default(), Box::new(sink));
        Self { shared: Arc::new(Shared { last, sink: Some(sink) }) }
    }

    /// Returns the entries that ended last, latest first.
    pub(crate) fn last(&self, limit: usize) -> Vec<AuditEntry> {
        let last = lock(&self.shared.last);
        last.iter().rev().take(limit).cloned().collect()
    }

    /// Begins an entry, which is recorded when `Pending` is dropped.
    pub(crate) fn begin(
        &self,
        actor: &Actor,
        action: &str,
        queue: &str,
        target: Option<String>,
    ) -> Pending {
        Pending {
            audit: self.clone(),
            entry: AuditEntry {
                at: SystemTime::now().into(),
                actor: actor.name().to_owned(),
                role: actor.role(),
                action: action.to_owned(),
                queue: queue.to_owned(),
                target: target.map(|target| plain(&target, Self::MAX_TEXT)),
                outcome: AuditOutcome::Interrupted,
            },
        }
    }

    fn record(&self, entry: AuditEntry) {
        let AuditEntry { actor, role, action, queue, target, .. } = &entry;
        let target = target.as_deref().unwrap_or_default();
        match &entry.outcome {
            AuditOutcome::Ok { changed } => {
                tracing::info!(target: "dq::audit", actor, %role, action, queue, target, changed);
            }
            AuditOutcome::Failed { error } => {
                tracing::warn!(target: "dq::audit", actor, %role, action, queue, target, error);
            }
            AuditOutcome::Interrupted => {
                tracing::warn!(target: "dq::audit", actor, %role, action, queue, target, "interrupted");
            }
        }
        {
            let mut last = lock(&self.shared.last);
            if last.len() == Self::KEPT {
                last.pop_front();
            }
            last.push_back(entry.clone());
        }
        // The user's function comes last because it may panic.
        if let Some(sink) = &self.shared.sink {
            sink(&entry);
        }
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit").finish_non_exhaustive()
    }
}

#[must_use = "the write counts as interrupted when this is dropped"]
#[derive(Debug)]
pub(crate) struct Pending {
    audit: Audit,
    entry: AuditEntry,
}

impl Pending {
    pub(crate) fn end<T>(mut self, result: Result<T>, changed: impl Fn(&T) -> u64) -> Result<T> {
        self.entry.outcome = match &result {
            Ok(value) => AuditOutcome::Ok { changed: changed(value) },
            Err(error) => {
                let error = plain(&error.to_string(), Audit::MAX_TEXT);
                AuditOutcome::Failed { error }
            }
        };
        result
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.audit.record(self.entry.clone());
    }
}
