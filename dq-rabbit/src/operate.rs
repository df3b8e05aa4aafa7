//! An operator's interventions.

use std::sync::Arc;

use dq_core::machine::Operate;
use dq_core::{Due, JobId, OperateReport, Operation, Result};

use crate::desk::Desk;
use crate::error::Effect;
use crate::log::{Replica, command};

/// Jobs of one call of the log, at most.
const CHUNK: usize = 5_000;

impl Desk {
    pub(crate) async fn operate(
        self: &Arc<Self>,
        operation: Operation<'_>,
    ) -> Result<OperateReport> {
        let now = self.log.now();
        let queue = operation.queue().clone();
        let mut affected = 0;
        for part in self.parts(operation).await? {
            let revived = match &part {
                Operate::Replay { jobs, .. } => jobs.clone().unwrap_or_default(),
                _ => Vec::new(),
            };
            let command = command::Operate(queue.clone(), part.into());
            let read = move |replica: &mut Replica, affected, _| {
                let machine = replica.machine();
                let waiting = revived.iter().filter(|id| machine.waits(**id));
                let waiting: Vec<_> = waiting.filter_map(|id| machine.peek(*id).cloned()).collect();
                (affected, waiting)
            };
            let (some, waiting) = self.log.call("operate", Effect::Lasting, command, read).await?;
            affected += some;
            self.carry(waiting, now);
        }
        Ok(OperateReport { affected })
    }

    /// The operation in parts that fit into the log. A replay names its jobs, so that it is known
    /// afterwards which of them have to be carried.
    async fn parts(&self, operation: Operation<'_>) -> Result<Vec<Operate>> {
        let queue = operation.queue().clone();
        Ok(match Operate::from(operation) {
            Operate::Replay { jobs, due } => {
                let jobs = match jobs {
                    Some(jobs) => jobs,
                    None => self.dead(&queue).await?.into_iter().map(|job| job.id).collect(),
                };
                // A delay begins when the first of them is replayed.
                let due = Due::At(due.resolve(self.log.now()));
                let part = |jobs: &[JobId]| Operate::Replay { jobs: Some(jobs.to_vec()), due };
                jobs.chunks(CHUNK).map(part).collect()
            }
            Operate::Remove { jobs: Some(jobs) } => {
                let part = |jobs: &[JobId]| Operate::Remove { jobs: Some(jobs.to_vec()) };
                jobs.chunks(CHUNK).map(part).collect()
            }
            whole => vec![whole],
        })
    }
}
