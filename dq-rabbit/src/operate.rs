//! An operator's interventions.

use std::sync::Arc;

use dq_core::machine::Operate;
use dq_core::{JobId, OperateReport, Operation, Result};

use crate::desk::Desk;
use crate::error::Effect;
use crate::log::{Command, Reply};

impl Desk {
    pub(crate) async fn operate(
        self: &Arc<Self>,
        operation: Operation<'_>,
    ) -> Result<OperateReport> {
        let now = self.log.now();
        let queue = operation.queue().clone();
        let mut operate = Operate::from(operation);
        let mut revived: Vec<JobId> = Vec::new();
        if let Operate::Replay { jobs, .. } = &mut operate {
            // By name, so that it is known afterwards which of them have to be carried.
            if jobs.is_none() {
                *jobs = Some(self.dead(&queue).await?.into_iter().map(|job| job.id).collect());
            }
            revived = jobs.clone().unwrap_or_default();
        }
        let command = Command::Operate(queue, operate.into());
        let answered =
            self.log.call("operate", Effect::Lasting, command, move |replica, reply, _| {
                let machine = replica.machine();
                let waiting = revived.iter().filter(|id| machine.waits(**id));
                let waiting: Vec<_> = waiting.filter_map(|id| machine.peek(*id).cloned()).collect();
                match reply {
                    Reply::Operated(affected) => (affected, waiting),
                    _ => (0, waiting),
                }
            });
        let (affected, waiting) = answered.await?;
        self.carry(waiting, now);
        Ok(OperateReport { affected })
    }
}
