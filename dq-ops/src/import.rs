//! Imports from other stores.

use dq_core::{ImportPreview, ImportReport, ImportSource, QueueName};

use crate::actor::Role;
use crate::error::{OpsError, Result};
use crate::ops::Session;

/// Interrupted imports to compare; one import leaves at most 100 entries.
const MAX_ENTRIES: usize = 1_000;

impl Session {
    /// Moves all jobs from a source into `queue`, each exactly once.
    ///
    /// Works as [`Dq::import`](dq_core::Dq::import); pass the queue that the source puts its jobs
    /// in. Needs the role admin.
    ///
    /// # Errors
    /// `Forbidden`; `Conflict` if an interrupted import has jobs for another queue; and the errors
    /// of [`Dq::import`](dq_core::Dq::import).
    pub async fn import(
        &self,
        queue: &QueueName,
        source: impl ImportSource,
    ) -> Result<ImportReport> {
        let target = Some(source.name());
        let import = async {
            self.may_change(queue, Role::Admin)?;
            continues(queue, &source).await?;
            Ok(self.ops.dq().import(source).await?)
        };
        let changed = |report: &ImportReport| report.imported + report.resumed;
        self.audited("import", queue, target, changed, import).await
    }

    /// Counts the jobs that [`import`](Self::import) would move now, without changes.
    ///
    /// Needs the role admin, because it reads another store.
    pub async fn preview_import(
        &self,
        queue: &QueueName,
        source: impl ImportSource,
    ) -> Result<ImportPreview> {
        self.may_change(queue, Role::Admin)?;
        continues(queue, &source).await?;
        Ok(self.ops.dq().preview_import(source).await?)
    }
}

/// Rejects an import if an interrupted one would continue into another queue.
async fn continues(queue: &QueueName, source: &impl ImportSource) -> Result<()> {
    let entries = source.journal().entries(MAX_ENTRIES).await?;
    let Some(other) = entries.into_iter().find(|entry| entry.job.queue != *queue) else {
        return Ok(());
    };
    let other = other.job.queue;
    Err(OpsError::conflict(
        format!("an interrupted import of {} was into the queue {other}", source.name()),
        format!("import into {other} again first, in the same store, which finishes it"),
    ))
}
