//! Defects of limits.

use std::sync::Arc;

use dq_core::{
    Backend, Flow, Layer, OperateReport, Operation, Result, Settled, Settlement, Verdict,
    async_trait,
};

use super::subject::Opened;

fn one_more(flow: Flow) -> Flow {
    flow.max_running.map_or(flow, |max| flow.max_running(max + 1))
}

layer!(RunsOneTooMany, {
    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.inner
            .operate(match operation {
                Operation::DeclareFlow { queue, flow } => {
                    Operation::DeclareFlow { queue, flow: one_more(flow) }
                }
                operation => operation,
            })
            .await
    }
});

layer!(ForgetsOverrides, {
    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        match operation {
            Operation::OverrideFlow { .. } => Ok(OperateReport::new(1)),
            operation => self.inner.operate(operation).await,
        }
    }
});

layer!(ThrottlesOneJob, {
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let mut settlements = settlements.to_vec();
        for settlement in &mut settlements {
            if let Verdict::Throttle(due) = settlement.verdict {
                settlement.verdict = Verdict::Snooze(due);
            }
        }
        self.inner.settle(&settlements).await
    }
});
