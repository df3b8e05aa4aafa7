//! Counts the jobs of queues: by state, and by due time.

use std::sync::Arc;

use dq_core::{QueueName, QueueStats, Result, Timestamp};

use crate::error::unexpected;
use crate::flow;
use crate::reply::{Refusal, Reply};
use crate::resize::retry_if_closed;
use crate::store::RedisBackend;

const MAX_PARTITIONS: usize = 100;

const FORECAST_TIMES: usize = 1_001;

impl RedisBackend {
    /// Counts the jobs of all queues if none is named.
    pub(crate) async fn count_jobs(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        if queues.is_empty() {
            let all = self.queues().await?;
            return retry_if_closed!(self, self.try_count_jobs(&all));
        }
        retry_if_closed!(self, self.try_count_jobs(queues))
    }

    /// `None` if a partition is closed.
    async fn try_count_jobs(&self, queues: &[QueueName]) -> Result<Option<Vec<QueueStats>>> {
        let mut stats: Vec<QueueStats> =
            queues.iter().map(|queue| QueueStats::empty(queue.clone())).collect();
        let mut partitions = Vec::with_capacity(queues.len());
        for (index, queue) in queues.iter().enumerate() {
            let queue_partitions = self.partitions_of(queue).await?;
            partitions.extend(queue_partitions.all.iter().map(|one| (index, Arc::clone(one))));
        }
        let per_call = if self.link.server().is_cluster() { 1 } else { MAX_PARTITIONS };
        let mut closed = Vec::new();
        for chunk in partitions.chunks(per_call) {
            let on = chunk.iter().map(|(_, partition)| &**partition);
            let mut reply = Reply::new(self.scripts.stats.on(on).run(&self.link).await?)?;
            for (index, partition) in chunk {
                match reply.list_or_refusal()? {
                    Ok(counts) => add_counts(&mut stats[*index], counts)?,
                    Err(Refusal::Closed) => closed.push(Arc::clone(partition)),
                    Err(_) => return Err(unexpected()),
                }
            }
        }
        for partition in &closed {
            self.reload(partition).await?;
        }
        Ok(closed.is_empty().then_some(stats))
    }

    /// Counts the jobs due between each two neighbouring times.
    pub(crate) async fn count_due(
        &self,
        queue: &QueueName,
        edges: &[Timestamp],
    ) -> Result<Vec<u64>> {
        let edges: Vec<i64> = edges.iter().map(|edge| edge.as_millis()).collect();
        retry_if_closed!(self, self.try_count_due(queue, &edges))
    }

    /// `None` if a partition is closed.
    async fn try_count_due(&self, queue: &QueueName, edges: &[i64]) -> Result<Option<Vec<u64>>> {
        let mut counts = vec![0; edges.len().saturating_sub(1)];
        for partition in &self.partitions_of(queue).await?.all {
            for first in (0..counts.len()).step_by(FORECAST_TIMES - 1) {
                let last = (first + FORECAST_TIMES).min(edges.len());
                let mut call = self.scripts.forecast.on([&**partition]);
                call.arg(&edges[first..last]);
                let Some(reply) = self.run_on(partition, call).await? else { return Ok(None) };
                let mut reply = Reply::new(reply)?;
                for count in &mut counts[first..last - 1] {
                    *count += reply.count()?;
                }
            }
        }
        Ok(Some(counts))
    }
}

fn add_counts(stats: &mut QueueStats, mut reply: Reply) -> Result<()> {
    let (ready, waiting) = (reply.count()?, reply.count()?);
    stats.ready += ready;
    stats.scheduled += waiting.checked_sub(ready).ok_or_else(unexpected)?;
    stats.running += reply.count()?;
    stats.dead += reply.count()?;
    stats.next_due = stats.next_due.into_iter().chain(reply.time_or_nil()?).min();
    let totals = stats.totals.get_or_insert_default();
    let mut fields = reply.list()?;
    while !fields.is_empty() {
        let (name, value) = (fields.bytes()?, fields.bytes()?);
        let total = match &name[..] {
            b"created" => &mut totals.created,
            b"done" => &mut totals.done,
            b"skipped" => &mut totals.skipped,
            b"cancelled" => &mut totals.cancelled,
            b"replaced" => &mut totals.replaced,
            b"removed" => &mut totals.removed,
            name => {
                stats.paused |= name == b"paused";
                continue;
            }
        };
        // Another program may have written there: a malformed total must not hide the rest.
        *total += str::from_utf8(&value).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    }
    match reply.list_or_nil()? {
        Some(gate) => flow::add_gate(&mut stats.flow, gate),
        None => Ok(()),
    }
}
