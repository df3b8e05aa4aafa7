//! Jobs that have lost their payload, for `check`.

use std::collections::BTreeSet;

use dq_core::JobId;

/// Further jobs are not counted.
const MAX_JOBS: usize = 1_000;

#[derive(Debug, Clone, Default)]
pub(crate) struct LostPayloads {
    pub(crate) jobs: BTreeSet<JobId>,
}

impl LostPayloads {
    pub(super) fn add(&mut self, job: JobId) {
        if self.jobs.len() < MAX_JOBS && self.jobs.insert(job) {
            tracing::error!(id = %job, "the log does not have the payload of a job any more");
        }
    }
}
