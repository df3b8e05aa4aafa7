//! Executes operations of an operator: pause, resume, replay, remove, purge.

use std::sync::Arc;

use dq_core::machine::OwnedOperation;
use dq_core::{Due, JobId, OperateReport, Operation, Result};

use crate::engine::Engine;
use crate::error::LostReply;
use crate::log::{Replica, command};

/// Maximum number of jobs in one log entry.
const MAX_ENTRY_JOBS: usize = 5_000;

impl Engine {
    pub(crate) async fn operate(
        self: &Arc<Self>,
        operation: Operation<'_>,
    ) -> Result<OperateReport> {
        let now = self.log.now();
        let queue = operation.queue().clone();
        let mut affected = 0;
        for part in self.parts(operation).await? {
            let replayed = match &part {
                OwnedOperation::Replay { jobs, .. } => jobs.clone().unwrap_or_default(),
                _ => Vec::new(),
            };
            let command = command::Operate(queue.clone(), part.into());
            let read = move |replica: &mut Replica, affected, _| {
                let machine = replica.machine();
                let waiting = replayed.iter().filter(|id| machine.is_waiting(**id));
                let waiting: Vec<_> = waiting.filter_map(|id| machine.peek(*id).cloned()).collect();
                (affected, waiting)
            };
            let (affected_by_part, waiting) =
                self.log.call("operate", LostReply::OutcomeUnknown, command, read).await?;
            affected += affected_by_part;
            self.publish_waiting(waiting, now);
        }
        Ok(OperateReport { affected })
    }

    /// Splits an operation into parts that fit into a log entry. A replay of all jobs names them,
    /// so that messages can be published for them.
    async fn parts(&self, operation: Operation<'_>) -> Result<Vec<OwnedOperation>> {
        let queue = operation.queue().clone();
        Ok(match OwnedOperation::from(operation) {
            OwnedOperation::Replay { jobs, due } => {
                let jobs = match jobs {
                    Some(jobs) => jobs,
                    None => self.dead_jobs(&queue).await?.into_iter().map(|job| job.id).collect(),
                };
                // All parts share one due time.
                let due = Due::At(due.resolve(self.log.now()));
                let part =
                    |jobs: &[JobId]| OwnedOperation::Replay { jobs: Some(jobs.to_vec()), due };
                jobs.chunks(MAX_ENTRY_JOBS).map(part).collect()
            }
            OwnedOperation::Remove { jobs: Some(jobs) } => {
                let part = |jobs: &[JobId]| OwnedOperation::Remove { jobs: Some(jobs.to_vec()) };
                jobs.chunks(MAX_ENTRY_JOBS).map(part).collect()
            }
            small => vec![small],
        })
    }
}
