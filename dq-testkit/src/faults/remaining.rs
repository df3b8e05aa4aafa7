//! The jobs in a store.

use dq_core::{Backend, BrowseParams, JobId, JobState, Result};

/// By itself a job only changes to a later one of these, so no job is missed between two lists.
const STATES: [JobState; 4] =
    [JobState::Running, JobState::Scheduled, JobState::Ready, JobState::Dead];

/// Returns the jobs that are not ended, some of them twice. No call may be in flight.
///
/// # Errors
/// The same as for [`Backend::stats`] and [`Backend::browse`].
pub async fn remaining(store: &dyn Backend) -> Result<Vec<JobId>> {
    let mut remaining = Vec::new();
    for stats in store.stats(&[]).await? {
        for state in STATES {
            let mut page = BrowseParams::new(&stats.queue, state).limit(1_000);
            loop {
                let jobs = store.browse(page).await?;
                remaining.extend(jobs.jobs.iter().map(|view| view.job.id));
                if jobs.next.is_none() {
                    break;
                }
                page = page.after(jobs.next);
            }
        }
    }
    Ok(remaining)
}
