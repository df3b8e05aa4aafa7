//! The ways in which a job leaves a store, for trials of the history and of ended ids.

use dq_core::{Cancelled, Ending, NewJob, OnConflict, Operation, Receipt, Scheduled, Verdict};

use super::client::dead;
use super::failure::{TrialResult, ensure_eq, ensure_matches};
use super::store::{LATER, TrialStore, key};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    Done,
    Skipped,
    Cancelled,
    Replaced,
    /// As a dead job.
    Removed,
    Purged,
}

impl Exit {
    pub(super) fn all(store: &TrialStore) -> Vec<Self> {
        let can = store.capabilities();
        let mut exits = vec![Self::Done, Self::Skipped, Self::Purged];
        exits.extend(can.cancel.then_some(Self::Cancelled));
        exits.extend(can.keys.then_some(Self::Replaced));
        exits.extend(can.dead_letters.then_some(Self::Removed));
        exits
    }

    pub(super) fn ending(self) -> Ending {
        match self {
            Self::Done => Ending::Done,
            Self::Skipped => Ending::Skipped,
            Self::Cancelled => Ending::Cancelled,
            Self::Replaced => Ending::Replaced,
            Self::Removed | Self::Purged => Ending::Removed,
        }
    }

    /// Stores a job, which must be due at once, in its empty queue, and makes it leave the store.
    ///
    /// [`Self::Replaced`] gives it the key `k`.
    pub(super) async fn take(self, store: &TrialStore, job: &NewJob) -> TrialResult<Receipt> {
        let queue = &job.queue;
        match self {
            Self::Done => store.run_job(job.clone(), Verdict::Done).await,
            Self::Skipped => store.run_job(job.clone(), Verdict::skip("a reason")).await,
            Self::Removed => {
                let receipt = store.run_job(job.clone(), dead("no")).await?;
                let remove = Operation::Remove { queue, jobs: &[job.id] };
                ensure_eq!(store.operate(remove).await?, 1, "a dead job is removed");
                Ok(receipt)
            }
            Self::Purged => {
                let receipt = store.create(job.clone()).await?;
                let purged = store.operate(Operation::Purge { queue }).await?;
                ensure_eq!(purged, 1, "a waiting job is purged");
                Ok(receipt)
            }
            Self::Cancelled => {
                let receipt = store.create(job.clone()).await?;
                let answer = store.cancel(queue, job.id).await?;
                ensure_eq!(answer, Cancelled::Cancelled, "a waiting job is cancelled");
                Ok(receipt)
            }
            Self::Replaced => {
                let receipt = store.create(job.clone().key(key("k"))).await?;
                let new = store.keyed(queue, LATER, "k", OnConflict::Replace);
                let answer = store.schedule(new).await?;
                ensure_matches!(answer, Scheduled::Replaced(_), "a waiting job");
                Ok(receipt)
            }
        }
    }
}
