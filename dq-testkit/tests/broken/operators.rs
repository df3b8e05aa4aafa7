//! Defects that operators and listeners see.

use std::sync::Arc;

use dq_core::{
    Backend, Layer, OperateReport, Operation, QueueName, QueueStats, Result, Wakeups, async_trait,
};

use super::subject::Opened;

// Counts skipped jobs as done.
layer!(WrongTotals, {
    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let mut stats = self.inner.stats(queues).await?;
        for totals in stats.iter_mut().filter_map(|stats| stats.totals.as_mut()) {
            // The sum stays right, so that the counts add up.
            totals.done += std::mem::take(&mut totals.skipped);
        }
        Ok(stats)
    }
});

layer!(IgnoresPause, {
    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        match operation {
            Operation::Pause { .. } => Ok(OperateReport::new(1)),
            operation => self.inner.operate(operation).await,
        }
    }
});

// Purges all queues that start with the name.
layer!(PurgesByPrefix, {
    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let Operation::Purge { queue } = operation else {
            return self.inner.operate(operation).await;
        };
        for stats in self.inner.stats(&[]).await? {
            if stats.queue != *queue && stats.queue.as_str().starts_with(queue.as_str()) {
                self.inner.operate(Operation::Purge { queue: &stats.queue }).await?;
            }
        }
        self.inner.operate(operation).await
    }
});

layer!(ReportsPurgesAsComplete, {
    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        Ok(OperateReport::new(self.inner.operate(operation).await?.affected))
    }
});

layer!(LosesHints, {
    async fn listen(&self, _: &[QueueName], _: &str) -> Result<Wakeups> {
        Ok(Wakeups::new().0)
    }
});
