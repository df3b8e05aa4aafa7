//! Bulk changes, with a count to confirm first.

use dq_core::{Due, JobState, QueueName, Timestamp};
use serde::{Deserialize, Serialize};

use crate::actor::Role;
use crate::error::{OpsError, Result};
use crate::filter::JobFilter;
use crate::ops::Session;
use crate::text;

/// Jobs compared by one count.
const MAX_COMPARED: u64 = 200_000;

/// A bulk change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BulkAction {
    /// Cancels waiting jobs.
    Cancel,
    /// Moves waiting jobs to this due time.
    Reschedule(Due),
    /// Makes dead jobs due now.
    Replay,
    /// Removes dead jobs.
    Remove,
}

impl BulkAction {
    /// Returns the action's name in addresses, such as `cancel`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Reschedule(_) => "reschedule",
            Self::Replay => "replay",
            Self::Remove => "remove",
        }
    }

    /// Returns the job states it changes.
    #[must_use]
    pub const fn states(self) -> &'static [JobState] {
        match self {
            Self::Cancel | Self::Reschedule(_) => &[JobState::Scheduled, JobState::Ready],
            Self::Replay | Self::Remove => &[JobState::Dead],
        }
    }
}

/// How many jobs a bulk change would affect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct BulkCount {
    /// Jobs that match now.
    pub matching: u64,
    /// Whether all jobs were compared; if not, `matching` is a lower bound.
    pub complete: bool,
    /// When they were counted, by the store's clock.
    #[serde(with = "text")]
    pub at: Timestamp,
}

/// A bulk change's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct BulkReport {
    /// Changed jobs.
    pub changed: u64,
}

impl Session {
    /// Counts the jobs that a bulk change would affect now.
    ///
    /// With a filter, it compares about 200,000 jobs at most; beyond that the count is incomplete.
    ///
    /// # Errors
    /// `Forbidden` below operator; `InvalidInput` for an invalid filter; `Unsupported` if the store
    /// cannot list jobs; `Unavailable`.
    pub async fn count(
        &self,
        queue: &QueueName,
        action: BulkAction,
        filter: &JobFilter,
    ) -> Result<BulkCount> {
        self.may_change(queue, Role::Operator)?;
        let handle = self.ops.dq().queue(queue)?;
        let at = self.now().await?;
        if filter.is_empty() {
            let stats = handle.stats().await?;
            let matching = match action {
                BulkAction::Cancel | BulkAction::Reschedule(_) => stats.scheduled + stats.ready,
                BulkAction::Replay | BulkAction::Remove => stats.dead,
            };
            return Ok(BulkCount { matching, complete: true, at });
        }
        let count = handle.count(action.states(), &filter.to_core()?, MAX_COMPARED).await?;
        Ok(BulkCount { matching: count.matching, complete: count.complete, at })
    }

    /// Changes all matching jobs.
    ///
    /// Pass the confirmed [`BulkCount::matching`] as `expected`. Then nothing changes if more jobs
    /// match now, or if there are too many jobs to count.
    ///
    /// If you drop the future, it stops after the current step of up to 1,000 jobs.
    ///
    /// # Errors
    /// `Conflict` if more jobs match than expected or they cannot be counted; `Forbidden` below
    /// operator; `InvalidInput` for an invalid filter; `Unsupported` if the store cannot list or
    /// change jobs; `Unavailable`, after earlier steps have taken effect.
    pub async fn bulk(
        &self,
        queue: &QueueName,
        action: BulkAction,
        filter: &JobFilter,
        expected: Option<u64>,
    ) -> Result<BulkReport> {
        let name = format!("{}_many", action.as_str());
        let change = async {
            let handle = self.open(queue)?;
            if let Some(expected) = expected {
                let count = self.count(queue, action, filter).await?;
                if count.matching > expected {
                    return Err(OpsError::conflict(
                        format!("{} jobs match now, more than {expected}", count.matching),
                        "count them again, and confirm the new number",
                    ));
                }
                if !count.complete {
                    return Err(OpsError::conflict(
                        format!(
                            "there are too many jobs to see whether more than {expected} match"
                        ),
                        "narrow the due times, or leave out the expected number: then all that match \
                         are changed",
                    ));
                }
            }
            let filter = filter.to_core()?;
            let changed = match action {
                BulkAction::Cancel => handle.cancel_where(filter).await?,
                BulkAction::Reschedule(due) => handle.reschedule_where(filter, due).await?,
                BulkAction::Replay => handle.replay_where(filter).await?,
                BulkAction::Remove => handle.remove_where(filter).await?,
            };
            Ok(BulkReport { changed })
        };
        self.audited(&name, queue, Some(filter.describe()), |report| report.changed, change).await
    }
}
