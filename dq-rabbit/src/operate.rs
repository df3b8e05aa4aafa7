//! Operations of an operator: pause, resume, replay, remove, purge.

use std::sync::Arc;

use dq_core::{OperateReport, Operation, Result};

use crate::engine::Engine;
use crate::error::LostReply;
use crate::log::Replica;
use crate::log::wire::Command;

impl Engine {
    pub(crate) async fn operate(
        self: &Arc<Self>,
        operation: Operation<'_>,
    ) -> Result<OperateReport> {
        let now = self.log.now();
        let queue = operation.queue().clone();
        let replayed = match operation {
            Operation::Replay { jobs, .. } => jobs.to_vec(),
            _ => Vec::new(),
        };
        let command = Command::Operate(queue, operation.try_into()?);
        let read = move |replica: &mut Replica, report: OperateReport, _| {
            let mut waiting = replayed;
            waiting.retain(|id| replica.machine().is_waiting(*id));
            let jobs = waiting.into_iter().filter_map(|id| Some((replica.job(id)?, None)));
            (report, jobs.collect())
        };
        let (report, waiting) =
            self.log.call("operate", LostReply::OutcomeUnknown, command, read).await?;
        self.deliver(waiting, now);
        Ok(report)
    }
}
