//! The audit: who changed what, and with which result.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use dq_core::Timestamp;
use dq_core::sync::lock;
use serde::{Deserialize, Serialize};

use crate::actor::{Actor, Role};
use crate::error::Result;
use crate::plain::plain;
use crate::text;

/// A write that somebody has tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct AuditEntry {
    /// When, by the clock of this process.
    #[serde(with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub at: Timestamp,
    /// The name of the actor.
    pub actor: String,
    /// The role of the actor.
    pub role: Role,
    /// What was to be done, such as `cancel`.
    pub action: String,
    /// The queue; empty if the name in the request is not valid, and for an action on a schedule
    /// that does not exist or could not be read.
    pub queue: String,
    /// The job, the filter or the schedule, cut at 512 characters and with control characters
    /// replaced; `None` for actions on the whole queue, and for a new job without a key.
    pub target: Option<String>,
    /// The result.
    pub outcome: AuditOutcome,
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "result", rename_all = "snake_case")]
#[non_exhaustive]
pub enum AuditOutcome {
    /// It took effect.
    Ok {
        /// Number of jobs, queues or schedules that changed; 1 also if a request with an idempotency
        /// key was repeated whose job is still stored.
        changed: u64,
    },
    /// It was refused or failed. A change of many jobs may have changed some of them before, and a write
    /// whose outcome is unknown may have taken effect.
    Failed {
        /// The error, cut at 512 characters and with control characters replaced.
        error: String,
    },
    /// The caller went away before the result was known. What was complete took effect; the call to
    /// the store that was in progress may have.
    Interrupted,
}

/// Where entries go besides the log: the last ones, and a function of the user's.
#[derive(Clone, Default)]
pub(crate) struct Audit {
    shared: Arc<Shared>,
}

/// A function that receives each entry.
type Sink = Box<dyn Fn(&AuditEntry) + Send + Sync>;

#[derive(Default)]
struct Shared {
    // A blocking mutex suffices: it is held for microseconds and never across an await.
    last: Mutex<VecDeque<AuditEntry>>,
    sink: Option<Sink>,
}

impl Audit {
    /// Number of entries that are kept in memory.
    pub(crate) const KEPT: usize = 1_000;

    /// Maximum length of a target and of an error in characters. Both may contain what a caller
    /// wrote, before it is checked.
    const MAX_TEXT: usize = 512;

    pub(crate) fn with_sink(sink: impl Fn(&AuditEntry) + Send + Sync + 'static) -> Self {
        let (last, sink): (_, Sink) = (Mutex::default(), Box::new(sink));
        Self { shared: Arc::new(Shared { last, sink: Some(sink) }) }
    }

    /// The last entries by the time at which they ended, the latest first.
    pub(crate) fn last(&self, limit: usize) -> Vec<AuditEntry> {
        let last = lock(&self.shared.last);
        last.iter().rev().take(limit).cloned().collect()
    }

    /// Begins an entry, which is recorded when the write has ended, or was dropped.
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
        // The function of the user comes last: it may panic.
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

/// A write that has not ended.
#[must_use = "the write counts as interrupted when this is dropped"]
#[derive(Debug)]
pub(crate) struct Pending {
    audit: Audit,
    entry: AuditEntry,
}

impl Pending {
    /// Records the result; `changed` counts what has changed.
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
