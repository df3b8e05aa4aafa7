//! Groups whose jobs wait.

use std::collections::BTreeMap;

use dq_core::{JobState, QueueName, Timestamp};

use crate::error::Result;
use crate::ops::Session;

/// Ready and running jobs looked at, of each state.
const MAX_EXAMINED: usize = 1_000;

const MAX_GROUPS: usize = 10;

/// A queue's groups with ready jobs, the longest waiting first; at most 10.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingGroups {
    /// The groups.
    pub groups: Vec<WaitingGroup>,
    /// Ready jobs examined: the first 1,000 at most.
    pub examined: u64,
    /// Whether all ready jobs were examined.
    pub complete: bool,
}

/// A group with ready jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingGroup {
    /// The name.
    pub group: String,
    /// Its running jobs, of the queue's first 1,000.
    pub running: u64,
    /// Its ready jobs, of those examined.
    pub waiting: u64,
    /// When the first of them was due.
    pub oldest_due: Timestamp,
}

impl Session {
    /// Returns the groups of a queue that wait longest.
    pub async fn waiting_groups(&self, queue: &QueueName) -> Result<WaitingGroups> {
        let handle = self.ops.dq().queue(queue)?;
        let browse = |state| handle.browse(state).payloads(false).limit(MAX_EXAMINED);
        let (ready, running) = (browse(JobState::Ready).await?, browse(JobState::Running).await?);
        let mut by_name: BTreeMap<&str, WaitingGroup> = BTreeMap::new();
        for job in ready.jobs.iter().map(|view| &view.job) {
            let Some(name) = job.group() else { continue };
            let group = by_name.entry(name).or_insert_with(|| WaitingGroup {
                group: name.to_owned(),
                running: 0,
                waiting: 0,
                oldest_due: job.due,
            });
            group.waiting += 1;
        }
        for name in running.jobs.iter().filter_map(|view| view.job.group()) {
            if let Some(group) = by_name.get_mut(name) {
                group.running += 1;
            }
        }
        let mut groups: Vec<WaitingGroup> = by_name.into_values().collect();
        groups.sort_by_key(|group| group.oldest_due);
        groups.truncate(MAX_GROUPS);
        let (examined, complete) = (ready.jobs.len() as u64, ready.next.is_none());
        Ok(WaitingGroups { groups, examined, complete })
    }
}
