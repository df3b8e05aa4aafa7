//! Operations on queues: replay, remove, pause, resume and purge.

use dq_core::{Due, Error, ErrorKind, JobId, OperateReport, Operation, QueueName, Result};
use redis::Value;

use crate::args::due_arg;
use crate::batch::CHUNK;
use crate::error::unexpected;
use crate::handle;
use crate::keys::Partition;
use crate::reply;
use crate::script::{Call, Script};
use crate::store::Store;

const OPERATE: &str = "operate";
const REPLAY: &str = "replay";
const REMOVE: &str = "remove";

/// Jobs after which a purge returns.
const PURGE_STEP: u64 = 1_000;

#[derive(Clone, Copy)]
struct DeadChange {
    name: &'static str,
    /// When replayed jobs are due.
    due: Due,
}

impl Store {
    /// Runs an operation.
    ///
    /// # Errors
    /// `Unsupported` for an operation from a later dq-core; errors of the calls, after which some
    /// jobs may have changed.
    pub(crate) async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let change = |name, due| DeadChange { name, due };
        let affected = match operation {
            Operation::Replay { queue, jobs, due } => {
                self.change_dead(queue, change(REPLAY, due), jobs).await
            }
            Operation::Remove { queue, jobs } => {
                self.change_dead(queue, change(REMOVE, Due::NOW), jobs).await
            }
            Operation::Pause { queue } => self.pause(queue, true).await,
            Operation::Resume { queue } => self.pause(queue, false).await,
            Operation::Purge { queue } => return self.purge(queue).await,
            operation => Err(Error::new(
                ErrorKind::Unsupported,
                format!("the Redis backends do not know the operation {operation:?}"),
            )
            .operation(OPERATE)),
        };
        affected.map(OperateReport::new)
    }

    async fn change_dead(
        &self,
        queue: &QueueName,
        change: DeadChange,
        jobs: &[JobId],
    ) -> Result<u64> {
        let ids: Vec<_> = jobs.iter().map(|job| handle::handle_and_tail(*job)).collect();
        let (mut changed, mut shard) = (0, 0);
        while shard < self.partitions_of(change.name, queue).await?.shards() {
            for chunk in ids.chunks(CHUNK) {
                let add = |partition: &Partition, call: &mut Call<'_>| {
                    let (max, age) = self.history_args(partition);
                    call.arg(&partition.channel).arg(change.name).arg(due_arg(change.due));
                    call.arg(max).arg(age);
                    for id in chunk {
                        call.arg(&id[..]);
                    }
                };
                changed += self.run_for_count(queue, shard, &self.scripts.dead, add).await?;
            }
            shard += 1;
        }
        Ok(changed)
    }

    /// Pauses or resumes all shards. Returns 1 if that changed any, else 0.
    async fn pause(&self, queue: &QueueName, pause: bool) -> Result<u64> {
        self.register(OPERATE, [queue]).await?;
        if pause {
            // The shard count is fixed while the queue is paused, so an empty queue gets its
            // setting now. A queue that cannot be changed is paused as it is.
            match self.partitions_to_fill(OPERATE, queue).await {
                Err(error) if error.kind() != ErrorKind::Config => return Err(error),
                _ => {}
            }
        }
        let (mut changed, mut shard) = (0, 0);
        while shard < self.partitions_of(OPERATE, queue).await?.shards() {
            let add = |partition: &Partition, call: &mut Call<'_>| {
                call.arg(&partition.channel).arg(u8::from(pause));
            };
            changed =
                changed.max(self.run_for_count(queue, shard, &self.scripts.pause, add).await?);
            shard += 1;
        }
        Ok(changed)
    }

    /// Removes about `PURGE_STEP` waiting and dead jobs.
    async fn purge(&self, queue: &QueueName) -> Result<OperateReport> {
        let (mut report, mut shard) = (OperateReport::default(), 0);
        while shard < self.partitions_of(OPERATE, queue).await?.shards() {
            report.more = report.affected >= PURGE_STEP;
            if report.more {
                break;
            }
            let add = |partition: &Partition, call: &mut Call<'_>| {
                let (max, age) = self.history_args(partition);
                call.arg(max).arg(age).arg(CHUNK);
            };
            match self.run_for_count(queue, shard, &self.scripts.purge, add).await? {
                0 => shard += 1,
                count => report.affected += count,
            }
        }
        Ok(report)
    }

    /// 0 if the queue no longer has this shard.
    async fn run_for_count(
        &self,
        queue: &QueueName,
        shard: u16,
        script: &Script,
        add: impl Fn(&Partition, &mut Call<'_>),
    ) -> Result<u64> {
        let answer = self.run_on_shard(OPERATE, queue, shard, script, add).await?;
        let Some(answer) = answer else { return Ok(0) };
        match reply::number(&answer).and_then(|number| u64::try_from(number).ok()) {
            Some(number) => Ok(number),
            None => unexpected(OPERATE),
        }
    }

    /// `None` if the queue no longer has this shard. Such a shard had no jobs, because the shard
    /// count changes only in empty queues.
    async fn run_on_shard(
        &self,
        operation: &'static str,
        queue: &QueueName,
        shard: u16,
        script: &Script,
        add: impl Fn(&Partition, &mut Call<'_>),
    ) -> Result<Option<Value>> {
        let mut retries = self.reshard_retries();
        loop {
            retries.next(operation).await?;
            let partitions = self.partitions_of(operation, queue).await?;
            let Some(partition) = partitions.all.get(usize::from(shard)) else {
                return Ok(None);
            };
            let mut call = script.on([&**partition]);
            add(partition, &mut call);
            if let Some(answer) = self.run_on(operation, partition, call).await? {
                return Ok(Some(answer));
            }
        }
    }
}
