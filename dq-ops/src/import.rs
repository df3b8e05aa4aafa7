//! Moves jobs of another store into this one.

use dq_core::{ImportPreview, ImportReport, ImportSource, QueueName};

use crate::actor::Role;
use crate::error::{OpsError, Result};
use crate::ops::Session;

/// Maximum number of entries of interrupted imports whose queues are compared. One import leaves at
/// most a hundred.
const MAX_ENTRIES: usize = 1_000;

impl Session {
    /// Moves all jobs of a source into `queue`, each exactly once, as
    /// [`Dq::import`](dq_core::Dq::import) does. `queue` is that of the source's jobs. Needs the role
    /// admin.
    ///
    /// # Errors
    /// `Forbidden`, `Conflict` if an interrupted import has jobs for another queue, and those of
    /// [`Dq::import`](dq_core::Dq::import).
    pub async fn import(
        &self,
        queue: &QueueName,
        source: impl ImportSource,
    ) -> Result<ImportReport> {
        let audit = self.begin("import", queue, Some(source.name()));
        let result = async {
            self.may_change(queue, Role::Admin)?;
            continues(queue, &source).await?;
            Ok(self.ops.dq().import(source).await?)
        };
        audit.end(result.await, |report| report.imported + report.resumed)
    }

    /// Counts what [`import`](Self::import) would move now, and changes nothing. Needs the role
    /// admin, since it reads another store.
    ///
    /// # Errors
    /// As [`Self::import`].
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

/// Refuses to continue an interrupted import if its jobs would go to another queue.
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
